// Sets of moments: sorted, disjoint spans of time that don't touch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "headrace/trace.h"

namespace headrace {

using Intervals = std::vector<TimeSpan>;

/// Spans in any order, overlapping or empty, as a set.
Intervals merged(std::vector<TimeSpan> spans);
Intervals united(const Intervals& a, const Intervals& b);
Intervals intersected(const Intervals& a, const Intervals& b);
Intervals subtracted(const Intervals& a, const Intervals& b);

/// How much of `set` lies in each window; the windows are sorted and disjoint.
std::vector<std::int64_t> time_within(const Intervals& set, std::span<const TimeSpan> windows);

}  // namespace headrace
