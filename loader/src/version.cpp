#include "headrace/version.h"

namespace headrace {

const char* version() noexcept { return HEADRACE_VERSION; }

}  // namespace headrace
