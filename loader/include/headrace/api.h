// What the shared library lets others see.
#pragma once

/// Stands in `namespace HEADRACE_API headrace` of every public header: what is declared there is
/// exported, everything else of the library is hidden.
#define HEADRACE_API [[gnu::visibility("default")]]
