#include <algorithm>
#include <array>
#include <string>

#include "headrace/error.h"
#include "headrace/trace.h"
#include "support.h"
#include "trace_event.h"
#include "trace_intervals.h"

using namespace headrace;

namespace {

TraceSummary read(const std::string& text, std::size_t piece = std::string::npos) {
  TraceReader reader("a.json");
  for (std::size_t at = 0; at < text.size(); at += std::min(piece, text.size())) {
    const std::string part = text.substr(at, piece);  // a copy: nothing readable behind it
    reader.feed(part);
  }
  return reader.finish();
}

std::string error_of(const std::string& text, std::size_t piece = std::string::npos) {
  try {
    read(text, piece);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kCorruptTrace);
    CHECK(error.context().path == "a.json");
    return error.what();
  }
  return "";
}

std::string event(const std::string& category, const std::string& name, const std::string& ts,
                  const std::string& dur, const std::string& args = "") {
  return R"({"ph": "X", "cat": ")" + category + R"(", "name": ")" + name +
         R"(", "pid": 1, "tid": 1, "ts": )" + ts + R"(, "dur": )" + dur + R"(, "args": {)" + args +
         "}}";
}

std::string launched(const std::string& number) { return R"("correlation": )" + number; }

std::string trace_of(const std::vector<std::string>& events) {
  std::string text = "\n{\n \"schemaVersion\": 1,\n \"traceEvents\": [";
  for (const auto& one : events) text += (&one == &events.front() ? "\n" : ",\n") + one;
  return text + "], \"traceName\": \"a, \\\"b\\\" {\",\n \"baseTimeNanoseconds\": 17\n}\n";
}

// Two steps of 100 us; in the first: 30 us of compute, 20 of communication, half of it hidden.
std::string two_steps() {
  return trace_of({
      event("user_annotation", "ProfilerStep#1", "1000", "100"),
      event("user_annotation", "ProfilerStep#2", "1100.000", "100.0"),
      event("gpu_user_annotation", "ProfilerStep#1", "1010", "100"),
      event("cpu_op", "aten::mm", "1005", "5"),
      event("cpu_op", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "1060", "10"),
      event("cuda_runtime", "cudaLaunchKernel", "1006", "2", launched("1")),
      event("cuda_runtime", "cudaLaunchKernel", "1008", "2", launched("2")),
      event("cuda_runtime", "cudaMalloc", "1080", "5"),
      event("cuda_driver", "cuLaunchKernel", "1106", "2", launched("3")),
      event("kernel", "sgemm", "1010", "30", launched("1")),
      event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "1030", "20",
            launched("2") + R"(, "In msg nelems": 8, "dtype": "Float")"),
      event("Kernel", "sgemm", "1110", "140", launched("3")),
      event("gpu_memset", "Memset (Device)", "1120", "1", launched("3")),
  });
}

}  // namespace

TEST_CASE("trace intervals are merged, subtracted and intersected as sets", "[trace]") {
  const Intervals a = merged({{5, 9}, {0, 3}, {2, 4}, {7, 7}, {9, 11}});
  REQUIRE(a.size() == 2);
  CHECK(a[0].end_ns == 4);
  CHECK(a[1].begin_ns == 5);
  CHECK(a[1].end_ns == 11);
  const Intervals b = merged({{3, 6}, {8, 20}});
  const std::array<TimeSpan, 1> window{{{0, 100}}};
  const auto total = [&window](const Intervals& set) { return time_within(set, window)[0]; };
  CHECK(total(intersected(a, b)) == 1 + 1 + 3);
  CHECK(total(subtracted(a, b)) == 3 + 2);
  CHECK(total(united(a, b)) == 20);
  const std::array<TimeSpan, 2> windows{{{1, 4}, {6, 8}}};
  CHECK(time_within(a, windows) == std::vector<std::int64_t>{3, 2});
}

TEST_CASE("trace times are integer nanoseconds", "[trace]") {
  const auto ns = [](std::string_view text) {
    std::int64_t value = -7;
    return microseconds_to_ns(text, value) ? value : -7;
  };
  CHECK(ns("1623142623460172") == 1623142623460172000);
  CHECK(ns("1712195495519689.047") == 1712195495519689047);
  CHECK(ns("0.5 ") == 500);
  CHECK(ns("-0.25") == -250);
  CHECK(ns("1.23456") == 1234);
  CHECK(ns("1.5e3") == 1500000);
  CHECK(ns("null") == -7);
  CHECK(ns("99999999999999999999") == -7);
}

TEST_CASE("a trace's steps are accounted for completely", "[trace]") {
  const TraceSummary summary = read(two_steps());
  REQUIRE(summary.steps.size() == 2);
  const auto& step = summary.steps[0];
  CHECK(step.span.begin_ns == 1000000);
  CHECK(step.span.end_ns == 1100000);
  const auto time_ns = [&step](TimeKind kind) {
    return step.time_ns[static_cast<std::size_t>(kind)];
  };
  CHECK(time_ns(TimeKind::kCompute) == 30000);
  CHECK(time_ns(TimeKind::kCommunication) == 10000);
  CHECK(time_ns(TimeKind::kLoader) == 10000);
  CHECK(time_ns(TimeKind::kAllocation) == 5000);
  CHECK(time_ns(TimeKind::kHost) == 45000);
  CHECK(time_ns(TimeKind::kUnknown) == 0);
  CHECK(step.communication_ns == 20000);
  CHECK(step.long_idle_ns == 0);
  // The second ends with its last kernel.
  CHECK(summary.steps[1].span.end_ns == 1250000);
  REQUIRE(summary.kernels.size() == 3);
  CHECK(summary.kernels[0].name == "sgemm");
  CHECK(summary.kernels[0].calls == 2);
  REQUIRE(summary.collectives.size() == 1);
  CHECK(summary.collectives[0].bytes == 32);
  CHECK(summary.metadata_json ==
        R"({"schemaVersion":1,"traceName":"a, \"b\" {","baseTimeNanoseconds":17})");
}

TEST_CASE("a trace is the same in pieces of any size", "[trace]") {
  const std::string text = two_steps();
  const TraceSummary whole = read(text);
  for (const std::size_t piece : {1, 2, 3, 7, 64, 1000}) {
    const TraceSummary summary = read(text, piece);
    CHECK(summary.metadata_json == whole.metadata_json);
    CHECK(summary.events == whole.events);
    REQUIRE(summary.steps.size() == 2);
    CHECK(summary.steps[0].time_ns == whole.steps[0].time_ns);
    CHECK(summary.steps[1].time_ns == whole.steps[1].time_ns);
  }
}

TEST_CASE("a trace may be the bare array of its events", "[trace]") {
  CHECK(read(std::string("[") + event("cpu_op", "aten::mm", "1", "5") + "]").host_events == 1);
}

TEST_CASE("control characters within a trace's strings are counted and read as spaces", "[trace]") {
  std::string text =
      trace_of({event("cpu_op", "a\tb", "1", "5"), event("kernel", "c\x01", "2", "5")});
  const TraceSummary summary = read(text);
  CHECK(summary.control_characters == 2);
  CHECK(summary.first_control_character == static_cast<std::int64_t>(text.find("a\tb")) + 1);
  CHECK(summary.kernels.at(0).name == "c ");
}

TEST_CASE("what is not a trace is refused with the byte that shows it", "[trace]") {
  const std::string good = two_steps();
  CHECK(error_of("").find("byte 0: the file is empty") != std::string::npos);
  CHECK(error_of("  hello").find("byte 2: this is not JSON") != std::string::npos);
  CHECK(error_of(R"({"a": 1})").find("byte 7: JSON without traceEvents") != std::string::npos);
  CHECK(error_of(R"({"traceEvents": 5})").find("byte 16: traceEvents is not an array") !=
        std::string::npos);
  CHECK(error_of(R"({"traceEvents": []})").find("none of its 0 events") != std::string::npos);
  CHECK(error_of(R"({"a": , "b": 1})").find("byte 6: expected a value") != std::string::npos);
  CHECK(error_of("[1, 2]").find("byte 1: expected an event") != std::string::npos);
  CHECK(error_of(good + "x").find("byte " + std::to_string(good.size())) != std::string::npos);
  const std::string half = good.substr(0, good.size() / 2);
  CHECK(error_of(half).find("byte " + std::to_string(half.size()) + ": the file ends") !=
        std::string::npos);
}

TEST_CASE("an unescaped quote in a trace is found", "[trace]") {
  for (const std::string name : {R"(say "hello" loud)", R"(5" disk)", R"(a "{" b)"}) {
    const std::string bad = event("cpu_op", name, "1", "5");
    const std::string text = trace_of({event("cpu_op", "aten::mm", "1", "5"), bad, bad});
    for (const std::size_t piece : {std::size_t{5}, std::string::npos}) {
      INFO(name);
      const std::string message = error_of(text, piece);
      CHECK(message.find("begins at byte " + std::to_string(text.find(bad))) != std::string::npos);
    }
  }
}
