#include <utility>

#include "headrace/error.h"
#include "headrace/trace.h"
#include "trace_accounting.h"
#include "trace_event.h"
#include "trace_record.h"
#include "trace_splitter.h"

namespace headrace {

struct TraceReader::Impl final : TraceSplitter::Sink {
  explicit Impl(const std::string& trace_path)
      : path(trace_path), parser(trace_path), splitter(*this, trace_path) {}

  void event(std::string_view object, std::int64_t offset) override {
    record.add(parser.parse(object, offset));
  }

  void member(std::string_view key, std::string_view value) override {
    metadata += metadata.empty() ? "{\"" : ",\"";
    metadata.append(key).append("\":").append(value);
  }

  std::string path;
  TraceRecord record;
  TraceEventParser parser;
  std::string metadata;
  TraceSplitter splitter;
};

TraceReader::TraceReader(const std::string& path) : impl_(std::make_unique<Impl>(path)) {}
TraceReader::~TraceReader() = default;

void TraceReader::feed(std::span<const char> bytes) { impl_->splitter.feed(bytes); }

TraceSummary TraceReader::finish() {
  impl_->splitter.finish();
  if (impl_->record.extent.begin_ns > impl_->record.extent.end_ns) {
    throw Error(ErrorCode::kCorruptTrace,
                "byte 0: none of its " + std::to_string(impl_->record.events) +
                    " events is an operator, a runtime call or device work. "
                    "Give a trace of torch.profiler",
                {.stage = "trace", .path = impl_->path});
  }
  TraceSummary summary = account(std::move(impl_->record));
  summary.metadata_json = impl_->metadata.empty() ? "{}" : impl_->metadata + "}";
  summary.control_characters = impl_->splitter.control_characters();
  summary.first_control_character = impl_->splitter.first_control_character();
  return summary;
}

}  // namespace headrace
