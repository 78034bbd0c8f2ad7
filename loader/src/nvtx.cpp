#include "nvtx.h"

#include <dlfcn.h>

#include <initializer_list>

namespace headrace {
namespace {

struct Functions {
  int (*push)(const char* name) = nullptr;
  int (*pop)() = nullptr;

  Functions() {
    // NVTX 3 (CUDA 13; torch brings it along), and what came before it.
    for (const char* name : {"libnvtx3interop.so.1", "libnvToolsExt.so.1"}) {
      void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (library == nullptr) continue;
      const auto find = [library](const char* symbol) { return dlsym(library, symbol); };
      push = reinterpret_cast<int (*)(const char*)>(find("nvtxRangePushA"));
      pop = reinterpret_cast<int (*)()>(find("nvtxRangePop"));
      if (push != nullptr && pop != nullptr) return;
      push = nullptr;
    }
  }
};

const Functions& functions() {
  static const Functions kLoaded;
  return kLoaded;
}

}  // namespace

NvtxRange::NvtxRange(const char* name) noexcept {
  if (functions().push != nullptr) functions().push(name);
}

NvtxRange::~NvtxRange() {
  if (functions().push != nullptr) functions().pop();
}

}  // namespace headrace
