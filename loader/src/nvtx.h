// Names for what the library does, in Nsight Systems and other profilers that read NVTX.
#pragma once

namespace headrace {

/// A named range on this thread, for as long as it lives. Nothing where there is no NVTX library.
class NvtxRange {
 public:
  explicit NvtxRange(const char* name) noexcept;
  ~NvtxRange();
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
};

}  // namespace headrace
