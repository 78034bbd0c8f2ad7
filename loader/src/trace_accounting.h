// From a trace's events to where the time of its steps went.
#pragma once

#include "headrace/trace.h"
#include "trace_record.h"

namespace headrace {

/// Fills all but the metadata and the counts of control characters.
TraceSummary account(TraceRecord record);

}  // namespace headrace
