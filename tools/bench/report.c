/* SPDX-License-Identifier: MIT
 *
 * What `sternway bench` says (bench.h): a table, comma-separated values or one JSON document
 * (docs/schema/bench.json), and the comparison behind it. */
#include "bench.h"

#include <stdio.h>
#include <string.h>

typedef struct figures {
    double tflops, gbs; /* tflops 0: not counted */
    double share;       /* of the peak of what is counted; 0: not known */
} figures;

static figures figures_of(const bench_peak *peak, const bench_result *r) {
    figures f = {0};
    double median = r->quartiles[1];
    if (!(median > 0)) return f;
    f.tflops = r->flop / median * 1e-12;
    f.gbs = r->bytes / median * 1e-9;
    if (r->flop > 0) f.share = peak->tflops > 0 && (peak->given || r->is_16bit) ? f.tflops / peak->tflops : 0;
    else f.share = peak->gbs > 0 ? f.gbs / peak->gbs : 0;
    return f;
}

static void add_named(cJSON *to, const stw_tool_named *named) {
    cJSON_AddStringToObject(to, "backend", named->backend);
    cJSON_AddStringToObject(to, "arch", named->arch);
    cJSON_AddStringToObject(to, "device", named->device);
    cJSON_AddStringToObject(to, "driver", named->driver);
    cJSON_AddStringToObject(to, "date", named->date);
}

/* A terminal that a row does not fit: the problem has a line of its own. */
#define ROW_COLUMNS 140
static int is_narrow(void) {
    int width = stw_tool_width(stdout);
    return width && width < ROW_COLUMNS;
}

void bench_report_begin(bench_report *report) {
    if (report->format == BENCH_CSV)
        printf("problem,arch,variant,runs,median_ms,iqr_ms,tflops,gbs,peak_share,max_ratio,rms_ratio,verified,"
               "workspace_bytes,host_us,low_ms,high_ms,old_median_ms,speedup,verdict\n");
    if (report->format == BENCH_TABLE)
        printf("%10s %9s %8s %7s %5s %8s %8s%s\n", "median ms", "IQR ms", "TFLOP/s", "GB/s", "peak", "host us",
               "work MiB", is_narrow() ? "" : "  variant                  problem");
    if (report->format != BENCH_JSON) return;
    const uint32_t v = stw_version();
    char version[32];
    snprintf(version, sizeof version, "%u.%u.%u", v / 10000, v / 100 % 100, v % 100);
    report->document = cJSON_CreateObject();
    cJSON_AddStringToObject(report->document, "sternway", version);
    add_named(report->document, &report->named);
    if (report->peak.tflops > 0 || report->peak.gbs > 0) {
        cJSON *peak = cJSON_AddObjectToObject(report->document, "peak");
        if (report->peak.tflops > 0) cJSON_AddNumberToObject(peak, "tflops", report->peak.tflops);
        if (report->peak.gbs > 0) cJSON_AddNumberToObject(peak, "gbs", report->peak.gbs);
        if (report->peak.title) cJSON_AddStringToObject(peak, "vendor_figures_of", report->peak.title);
    }
    report->rows = cJSON_AddArrayToObject(report->document, "problems");
}

/* ---- a problem ----------------------------------------------------------------------------------------- */

cJSON *bench_row_of(const char *line, const char *variant, int runs, const double quartiles[3]) {
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "problem", line);
    cJSON_AddStringToObject(item, "variant", variant);
    cJSON_AddNumberToObject(item, "runs", runs);
    cJSON_AddNumberToObject(item, "median_ms", quartiles[1] * 1e3);
    cJSON_AddNumberToObject(item, "iqr_ms", (quartiles[2] - quartiles[0]) * 1e3);
    cJSON_AddNumberToObject(item, "low_ms", quartiles[0] * 1e3);
    cJSON_AddNumberToObject(item, "high_ms", quartiles[2] * 1e3);
    return item;
}

static void add_row(cJSON *rows, const bench_result *r, const figures *f) {
    cJSON *item = bench_row_of(r->line, r->check.variant, r->runs, r->quartiles);
    if (r->flop > 0) cJSON_AddNumberToObject(item, "tflops", f->tflops);
    cJSON_AddNumberToObject(item, "gbs", f->gbs);
    cJSON_AddNumberToObject(item, "bytes", r->bytes);
    if (f->share > 0) cJSON_AddNumberToObject(item, "peak_share", f->share);
    cJSON_AddNumberToObject(item, "max_ratio", r->max_ratio);
    cJSON_AddNumberToObject(item, "rms_ratio", r->rms_ratio);
    cJSON_AddNumberToObject(item, "workspace_bytes", (double)r->workspace);
    if (r->host > 0) cJSON_AddNumberToObject(item, "host_us", r->host * 1e6);
    cJSON_AddBoolToObject(item, "verified", !r->not_verified);
    if (r->not_verified) cJSON_AddStringToObject(item, "not_verified", r->not_verified);
    cJSON_AddItemToArray(rows, item);
}

/* A number, or `none` where it is 0. */
static const char *number(char text[24], const char *format, double value, const char *none) {
    if (!(value > 0)) {
        snprintf(text, 24, "%s", none);
    } else {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(text, 24, format, value);
#pragma GCC diagnostic pop
    }
    return text;
}

static void print_csv(const bench_report *report, const bench_result *r, const figures *f, const cJSON *old,
                      double ratio, bench_verdict verdict) {
    char text[4][24];
    const char *quote = strchr(r->line, ',') ? "\"" : "";
    printf("%s%s%s,%s,%s,%d,%.6f,%.6f,%s,%.3f,%s,%.3f,%.3f,%s,%zu,%s,%.6f,%.6f,%s", quote, r->line, quote,
           report->named.arch, r->check.variant, r->runs, r->quartiles[1] * 1e3,
           (r->quartiles[2] - r->quartiles[0]) * 1e3, number(text[0], "%.4f", r->flop > 0 ? f->tflops : 0, ""), f->gbs,
           number(text[1], "%.4f", f->share, ""), r->max_ratio, r->rms_ratio, r->not_verified ? "no" : "yes",
           r->workspace, number(text[2], "%.1f", r->host * 1e6, ""), r->quartiles[0] * 1e3, r->quartiles[2] * 1e3,
           number(text[3], "%.6f", old ? cJSON_GetObjectItemCaseSensitive(old, "median_ms")->valuedouble : 0, ""));
    if (old) printf(",%.4f,%s\n", ratio, bench_verdict_names[verdict]);
    else puts(",,");
}

static void print_row(const bench_result *r, const figures *f) {
    char text[3][24], line[sizeof r->line + 300];
    int narrow = is_narrow();
    snprintf(line, sizeof line, "%s%s%s%s%s%s", r->line, r->not_verified ? " (not verified: " : "",
             r->not_verified ? r->not_verified : "", r->not_verified ? ")" : "", narrow ? ", " : "",
             narrow ? r->check.variant : "");
    if (narrow) stw_tool_print_line(line, 4);
    printf("%10.3f %9.3f %8s %7.1f %5s %8s %8.1f", r->quartiles[1] * 1e3, (r->quartiles[2] - r->quartiles[0]) * 1e3,
           number(text[0], "%.3f", f->tflops, "-"), f->gbs, number(text[1], "%.0f%%", f->share * 100, "-"),
           number(text[2], "%.1f", r->host * 1e6, "-"), (double)r->workspace / 0x1p20);
    if (narrow) putchar('\n');
    else printf("  %-24s %s\n", r->check.variant, line);
}

void bench_report_row(bench_report *report, const bench_result *r) {
    figures f = figures_of(&report->peak, r);
    double ratio = 0;
    bench_verdict verdict = BENCH_SAME;
    const cJSON *old = bench_compare(&report->old, r, &ratio, &verdict);
    if (report->format == BENCH_JSON) add_row(report->rows, r, &f);
    else if (report->format == BENCH_CSV) print_csv(report, r, &f, old, ratio, verdict);
    else print_row(r, &f);
    fflush(stdout);
}

/* ---- the end ------------------------------------------------------------------------------------------- */

static void print_peak(const bench_peak *peak) {
    if (!peak->title) return;
    char line[300];
    snprintf(line, sizeof line,
             "peak: the vendor's figures for %.100s, not measured: %g TFLOP/s of dense 16-bit products, %g GB/s",
             peak->title, peak->tflops, peak->gbs);
    stw_tool_print_line(line, 6);
}

static void print_comparison(FILE *to, const cJSON *c) {
    const cJSON *row;
    fprintf(to, "\ncompared with %s: version %s on %s (%s%s%s), %s\n", stw_tool_json_text(c, "file"),
            stw_tool_json_text(c, "sternway"), stw_tool_json_text(c, "device"), stw_tool_json_text(c, "arch"),
            stw_tool_json_text(c, "driver")[0] ? ", driver " : "", stw_tool_json_text(c, "driver"),
            stw_tool_json_text(c, "date"));
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(c, "differences"))
        fprintf(to, "  not the same %s\n", row->valuestring);
    fprintf(to, "%10s %10s %8s  verdict problem\n", "old ms", "new ms", "speedup");
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(c, "problems"))
        fprintf(to, "%10.3f %10.3f %8.3f  %-7s %s\n", stw_tool_json_number(row, "old_median_ms"),
                stw_tool_json_number(row, "median_ms"), stw_tool_json_number(row, "speedup"),
                stw_tool_json_text(row, "verdict"), stw_tool_json_text(row, "problem"));
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(c, "missing"))
        fprintf(to, "%10s %10s %8s  missing %s\n", "", "-", "-", row->valuestring);
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(c, "added"))
        fprintf(to, "%10s %10s %8s  new     %s\n", "-", "", "-", row->valuestring);
    if (stw_tool_json_text(c, "verdict")[0])
        fprintf(to, "in total %.3f times as fast, from %.3f to %.3f by the quartiles: %s\n",
                stw_tool_json_number(c, "speedup"), stw_tool_json_number(c, "speedup_low"),
                stw_tool_json_number(c, "speedup_high"), stw_tool_json_text(c, "verdict"));
    else fprintf(to, "no problem is in both\n");
}

int bench_report_end(bench_report *report, const char *partial) {
    int slower = 0;
    if (partial) stw_tool_error("bench", NULL, "%s", partial);
    cJSON *comparison = bench_compare_end(&report->old, &report->named, &slower);
    if (report->format == BENCH_TABLE) print_peak(&report->peak);
    if (report->format == BENCH_TABLE && partial) printf("partial: %s\n", partial);
    if (report->format == BENCH_JSON) {
        if (partial) cJSON_AddStringToObject(report->document, "partial", partial);
        if (comparison) cJSON_AddItemToObject(report->document, "compare", comparison);
        stw_tool_print_json(report->document);
        return slower;
    }
    if (comparison) print_comparison(report->format == BENCH_CSV ? stderr : stdout, comparison);
    cJSON_Delete(comparison);
    return slower;
}
