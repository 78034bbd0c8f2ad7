// The engine's replaceable parts: real ones by default, scripted ones in tests.
#pragma once

#include <functional>
#include <memory>

#include "executor.h"
#include "headrace/engine.h"
#include "reader.h"

namespace headrace {

struct Engine::Parts {
  std::function<std::unique_ptr<Reader>(OnDone on_done)> make_reader;
  std::function<std::unique_ptr<Executor>()> make_executor;

  static Parts real(const EngineOptions& options);
};

}  // namespace headrace
