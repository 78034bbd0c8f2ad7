#include "trace_record.h"

#include <algorithm>
#include <cctype>
#include <initializer_list>

namespace headrace {
namespace {

std::string lowered(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

bool contains_any(std::string_view text, std::initializer_list<std::string_view> parts) {
  return std::ranges::any_of(
      parts, [text](std::string_view part) { return text.find(part) != std::string_view::npos; });
}

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, text) != names.end();
}

// NCCL's and RCCL's: ncclKernel_* (old), ncclDevKernel_*, ncclSymDevKernel_* (new), mscclKernel*.
// Then the collectives that inference servers bring along.
bool is_communication(std::string_view kernel) {
  return kernel.starts_with("nccl") || kernel.starts_with("rccl") || kernel.starts_with("msccl") ||
         contains_any(kernel, {"cross_device_reduce", "multimem_all_reduce", "allreduce_fusion"});
}

// cudaX, hipX and cuX alike.
RuntimeCallKind kind_of(std::string_view call) {
  if (contains_any(call, {"GraphLaunch"})) return RuntimeCallKind::kGraphLaunch;
  if (contains_any(call, {"Launch"})) return RuntimeCallKind::kLaunch;
  if (contains_any(call, {"Synchronize"}) ||
      is_one_of(call, {"cudaMemcpy", "hipMemcpy", "hipMemcpyWithStream"})) {
    return RuntimeCallKind::kSync;
  }
  if (contains_any(call, {"Free", "cuMemUnmap", "cuMemRelease"})) return RuntimeCallKind::kFree;
  if (contains_any(call, {"Malloc", "HostAlloc", "HostRegister", "cuMemCreate", "cuMemMap",
                          "cuMemSetAccess"})) {
    return RuntimeCallKind::kAllocate;
  }
  return RuntimeCallKind::kOther;
}

// torch's own record of DataLoader.__next__, of data pipes, and Lightning's.
bool is_loader_wait(std::string_view name) {
  return (name.starts_with("enumerate(DataLoader)#") && name.ends_with(".__next__")) ||
         name.starts_with("enumerate(DataPipe)#") ||
         (name.starts_with("[pl][profile]") && name.ends_with("train_dataloader_next"));
}

bool is_compiled_region(std::string_view name) {
  return name.starts_with("Torch-Compiled Region") || name.starts_with("CompiledFunction") ||
         name.starts_with("## Call CompiledFxGraph");
}

std::int64_t element_bytes(std::string_view type) {
  if (is_one_of(type, {"Double", "Long", "double", "int64"})) return 8;
  if (is_one_of(type, {"Half", "BFloat16", "Short", "half", "bfloat16"})) return 2;
  if (is_one_of(type, {"Byte", "Char", "Bool", "int8", "uint8"}) || type.starts_with("Float8")) {
    return 1;
  }
  return 4;
}

TimeSpan span_of(const TraceEvent& event) {
  return {event.begin_ns, event.begin_ns + std::max<std::int64_t>(0, event.duration_ns)};
}

}  // namespace

std::uint32_t TraceRecord::intern(std::string_view name) {
  const auto [at, is_new] =
      ids_.try_emplace(std::string(name), static_cast<std::uint32_t>(names.size()));
  if (is_new) names.emplace_back(name);
  return at->second;
}

void TraceRecord::add(const TraceEvent& event) {
  ++events;
  if (event.begin_ns < 0) return;
  if (event.phase == 'i' || event.phase == 'I') {
    add_memory(event);
    return;
  }
  if (event.phase != 'X') return;
  const std::string category = lowered(event.category);
  if (category == "kernel") {
    add_device(event,
               is_communication(event.name) ? DeviceWork::kCommunication : DeviceWork::kCompute);
  } else if (is_one_of(category, {"gpu_memcpy", "gpu_memset", "memcpy", "memset"})) {
    add_device(event, DeviceWork::kCopy);
  } else if (category == "cuda_driver" || category.ends_with("runtime")) {
    add_runtime(event);
  } else if (is_one_of(category, {"cpu_op", "operator", "user_annotation", "python_function"})) {
    add_host(event);
  } else {
    return;  // copies of host events on the device's rows, spans of the profiler itself
  }
  const TimeSpan span = span_of(event);
  extent.begin_ns = std::min(extent.begin_ns, span.begin_ns);
  extent.end_ns = std::max(extent.end_ns, span.end_ns);
}

void TraceRecord::add_device(const TraceEvent& event, DeviceWork work) {
  std::int64_t bytes = event.bytes;
  if (work == DeviceWork::kCommunication && event.message_elements >= 0) {
    bytes = event.message_elements * element_bytes(event.message_type);
  }
  device_events.push_back({.span = span_of(event),
                           .correlation = event.correlation,
                           .bytes = bytes,
                           .name = intern(event.name),
                           .group = intern(event.group),
                           .device = static_cast<std::int16_t>(event.device),
                           .work = work});
}

void TraceRecord::add_runtime(const TraceEvent& event) {
  ++host_events;
  const RuntimeCallKind kind = kind_of(event.name);
  if (kind == RuntimeCallKind::kOther && event.correlation < 0) return;
  runtime_calls.push_back({span_of(event), event.correlation, kind});
}

void TraceRecord::add_host(const TraceEvent& event) {
  ++host_events;
  if (event.name.starts_with("ProfilerStep")) {
    steps.push_back({std::string(event.name), span_of(event)});
    return;
  }
  ++operators;
  if (is_loader_wait(event.name)) {
    if (loader_waits.empty()) loader_name = event.name;
    loader_waits.push_back(span_of(event));
  } else if (event.name == "aten::_local_scalar_dense") {  // aten::item calls it
    items_ns.push_back(event.begin_ns);
  } else if (is_compiled_region(event.name)) {
    compiled_regions_ns.push_back(event.begin_ns);
  }
}

void TraceRecord::add_memory(const TraceEvent& event) {
  const bool on_gpu = event.memory_device_type == 1 || event.memory_device_type == 6;  // CUDA, HIP
  if (!on_gpu) return;
  if (event.name == "[OutOfMemory]") ++out_of_memory[event.memory_device];
  if (event.name == "[memory]" && event.total_allocated >= 0) {
    memory.push_back(
        {event.begin_ns, event.memory_device, event.total_allocated, event.total_reserved});
  }
}

}  // namespace headrace
