/* SPDX-License-Identifier: MIT
 *
 * Ending a long command early: SIGINT, SIGTERM and SIGHUP end it, and so does a reader of standard output that has
 * gone. What is finished is reported, marked as partial, and the process then ends by that signal. */
#ifndef STW_TOOLS_BASE_STOP_H
#define STW_TOOLS_BASE_STOP_H

/* From here on a signal is noted, and one that comes a second later ends the process at once. Signals that the caller
 * ignores (nohup, a job in the background) stay ignored. SIGPIPE is ignored: writing fails instead. */
void stw_tool_stop_begin(void);

/* The name of the signal that asked for the end, "SIGPIPE" once nothing more can be written to a pipe; NULL: go on. */
const char *stw_tool_stopped(void);

/* The exit status of a command that was stopped, 128 + the signal's number, which a shell shows too; else `status`. */
int stw_tool_stop_status(int status);

/* The last call of the process: ends it by the signal that stopped it. Returns the exit status where none did. */
int stw_tool_stop_end(int status);

/* In a process forked for a part of the work: signals are the parent's to answer, with whom it ends. */
void stw_tool_stop_child(void);

#endif
