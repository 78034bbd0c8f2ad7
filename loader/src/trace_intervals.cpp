#include "trace_intervals.h"

#include <algorithm>

namespace headrace {

Intervals merged(std::vector<TimeSpan> spans) {
  std::erase_if(spans, [](const TimeSpan& s) { return s.end_ns <= s.begin_ns; });
  std::ranges::sort(spans, {}, &TimeSpan::begin_ns);
  Intervals set;
  for (const TimeSpan& span : spans) {
    if (!set.empty() && span.begin_ns <= set.back().end_ns) {
      set.back().end_ns = std::max(set.back().end_ns, span.end_ns);
    } else {
      set.push_back(span);
    }
  }
  return set;
}

Intervals united(const Intervals& a, const Intervals& b) {
  Intervals both = a;
  both.insert(both.end(), b.begin(), b.end());
  return merged(std::move(both));
}

Intervals intersected(const Intervals& a, const Intervals& b) {
  Intervals common;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const std::int64_t begin = std::max(a[i].begin_ns, b[j].begin_ns);
    const std::int64_t end = std::min(a[i].end_ns, b[j].end_ns);
    if (begin < end) common.push_back({begin, end});
    if (a[i].end_ns < b[j].end_ns) {
      ++i;
    } else {
      ++j;
    }
  }
  return common;
}

Intervals subtracted(const Intervals& a, const Intervals& b) {
  Intervals rest;
  std::size_t first = 0;
  for (TimeSpan left : a) {
    while (first < b.size() && b[first].end_ns <= left.begin_ns) ++first;
    for (std::size_t j = first; j < b.size() && b[j].begin_ns < left.end_ns; ++j) {
      if (b[j].begin_ns > left.begin_ns) rest.push_back({left.begin_ns, b[j].begin_ns});
      left.begin_ns = std::max(left.begin_ns, b[j].end_ns);
    }
    if (left.begin_ns < left.end_ns) rest.push_back(left);
  }
  return rest;
}

std::vector<std::int64_t> time_within(const Intervals& set, std::span<const TimeSpan> windows) {
  std::vector<std::int64_t> times(windows.size(), 0);
  for (std::size_t i = 0, j = 0; i < set.size() && j < windows.size();) {
    times[j] += std::max<std::int64_t>(0, std::min(set[i].end_ns, windows[j].end_ns) -
                                              std::max(set[i].begin_ns, windows[j].begin_ns));
    if (set[i].end_ns < windows[j].end_ns) {
      ++i;
    } else {
      ++j;
    }
  }
  return times;
}

}  // namespace headrace
