/* SPDX-License-Identifier: MIT */
/** @file
 * Sternway: the one header users include. */
#ifndef STERNWAY_STERNWAY_H
#define STERNWAY_STERNWAY_H

#include "attn_bwd.h"
#include "attn_cp.h"
#include "attn_masks.h"
#include "attn_once.h"
#include "base.h"
#include "jagged_bwd.h"

#endif
