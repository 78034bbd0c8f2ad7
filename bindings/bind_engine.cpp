#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bind.h"
#include "buffers.h"
#include "gil.h"
#include "headrace/buffer.h"
#include "headrace/device.h"
#include "headrace/dlpack.h"
#include "headrace/engine.h"
#include "headrace/error.h"
#include "headrace/threads.h"
#include "offered_memory.h"
#include "samples.h"

namespace py = pybind11;

namespace {

using headrace::Batch;
using headrace::BufferKeeper;
using headrace::BufferPool;
using headrace::Engine;
using headrace::EngineOptions;
using headrace::EngineStats;
using headrace::Field;
using headrace::OfferedMemory;
using headrace::PinnedAllocator;
using headrace::PinnedBuffer;
using headrace::Question;
using headrace::RandomRules;
using headrace::RandomStream;
using headrace::Sample;
using headrace::SampleKey;
using headrace::Samples;
using headrace::Transform;
using headrace::without_gil;
namespace dlpack = headrace::dlpack;

/// An engine as Python holds it: closable, and harmless in a forked child, where its threads and
/// perhaps the holder of its lock are missing.
class EngineHandle {
 public:
  EngineHandle(const EngineOptions& options, const Transform& transform,
               const std::vector<RandomStream>& streams)
      : engine_(std::make_unique<Engine>(options, transform, streams)), process_(getpid()) {}

  /// With the GIL: to take it back may end a daemon thread by unwinding, which no destructor
  /// survives. None of our threads ever needs it.
  ~EngineHandle() {
    std::unique_ptr<Engine> engine = end();
    if (engine == nullptr) return;
    in_use_.lock();
    in_use_.unlock();
    engine.reset();
    keeper_->release_dropped();
  }
  EngineHandle(const EngineHandle&) = delete;
  EngineHandle& operator=(const EngineHandle&) = delete;

  Engine& get() const {
    if (engine_ == nullptr) {
      throw headrace::Error(headrace::ErrorCode::kStopped, "this iterator is closed",
                            {.stage = "engine"});
    }
    if (process_ != getpid()) {
      throw headrace::Error(headrace::ErrorCode::kStopped,
                            "this iterator belongs to process " + std::to_string(process_) +
                                ", which forked this one: its threads do not exist here. Make a "
                                "new iterator in this process, with iter(loader)",
                            {.stage = "engine"});
    }
    return *engine_;
  }

  bool closed() const noexcept { return engine_ == nullptr; }

  /// Calls `function` with the engine, without the GIL. While it lasts, close() in another thread
  /// waits.
  template <class Function>
  void use(Function function) {
    Engine& engine = get();
    in_use_.lock();
    without_gil([&] {
      const std::lock_guard use(in_use_, std::adopt_lock);
      function(engine);
    });
  }

  /// What Engine::next() gives, where Python will have it; both null after the timeout.
  struct Event {
    std::unique_ptr<Question> question;
    std::unique_ptr<Batch> batch;
  };

  Event next(std::chrono::milliseconds timeout) {
    get();  // refuses before anything is given away
    if (kept_ != nullptr) return {.question = nullptr, .batch = std::move(kept_)};
    Event event;
    use([&](Engine& engine) {
      Engine::Event next = engine.next(timeout);
      if (auto* question = std::get_if<Question>(&next)) {
        event.question = std::make_unique<Question>(std::move(*question));
      } else if (auto* batch = std::get_if<Batch>(&next)) {
        event.batch = std::make_unique<Batch>(std::move(*batch));
      }
    });
    return event;
  }

  /// For an event that cannot be handed on: a batch is what the next call of next() gives. (A
  /// question comes again by itself.)
  void keep(Event event) { kept_ = std::move(event.batch); }

  std::size_t in_flight() const { return get().in_flight() + (kept_ != nullptr ? 1 : 0); }

  /// After the end, the last ones.
  EngineStats stats() const { return closed() ? final_stats_ : get().stats(); }

  void close() {
    std::unique_ptr<Engine> engine = end();
    if (engine == nullptr) return;
    without_gil([&] {
      in_use_.lock();  // now nobody is in it any more
      in_use_.unlock();
      engine.reset();
    });
    keeper_->release_dropped();
  }

  /// Of the images that samples bring along.
  BufferKeeper& keeper() const noexcept { return *keeper_; }

 private:
  /// The stopped engine, to be destroyed when nobody is in next(); null where there is none, or
  /// where it is another process's: nothing in it may be touched then, and it is left alone.
  std::unique_ptr<Engine> end() {
    if (closed()) return nullptr;
    if (process_ != getpid()) {
      (void)engine_.release();
      return nullptr;
    }
    kept_.reset();
    engine_->stop();
    final_stats_ = engine_->stats();
    return std::move(engine_);
  }

  std::shared_ptr<BufferKeeper> keeper_ = std::make_shared<BufferKeeper>();
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Batch> kept_;
  EngineStats final_stats_;
  std::mutex in_use_;
  pid_t process_;
};

EngineOptions::Reader reader_named(const std::string& name) {
  if (name == "auto") return EngineOptions::Reader::kAuto;
  if (name == "io_uring") return EngineOptions::Reader::kUring;
  if (name == "pread") return EngineOptions::Reader::kPread;
  throw py::value_error("reader must be 'auto', 'io_uring' or 'pread'; got '" + name + "'");
}

/// Waits in slices, so that Ctrl-C and other signals are served on the main thread meanwhile.
py::object next_event(EngineHandle& handle, std::int64_t timeout_ms) {
  using std::chrono::milliseconds;
  constexpr milliseconds kSlice{20};
  milliseconds left{timeout_ms};
  while (true) {
    EngineHandle::Event event = handle.next(std::min(left, kSlice));
    // Before the event leaves: Python would run the handlers right afterwards, and lose it.
    if (PyErr_CheckSignals() != 0) {
      handle.keep(std::move(event));
      throw py::error_already_set();
    }
    if (event.question != nullptr) return py::cast(std::move(event.question));
    if (event.batch != nullptr) return py::cast(std::move(event.batch));
    left -= std::min(left, kSlice);
    if (left.count() == 0) return py::none();
  }
}

py::capsule to_dlpack(const Field& field, std::int64_t rows) {
  dlpack::ManagedTensor* tensor =
      dlpack::make_tensor(field.spec, rows, field.memory.get(), {dlpack::kCpu, 0}, field.memory);
  // Whoever takes the tensor renames the capsule; one that keeps its name was never taken.
  return py::capsule(tensor, "dltensor", [](PyObject* object) {
    if (PyCapsule_IsValid(object, "dltensor") == 0) return;
    auto* self = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(object, "dltensor"));
    self->deleter(self);
  });
}

py::dict stats(const EngineHandle& handle) {
  const EngineStats stats = handle.stats();
  py::dict stages;
  for (const auto& stage : stats.stages) {
    py::dict entry;
    entry["items"] = stage.items;
    entry["bytes"] = stage.bytes;
    entry["busy_ns"] = stage.busy_ns;
    entry["waiting_ns"] = stage.waiting_ns;
    stages[py::str(stage.name)] = entry;
  }
  py::dict result;
  result["reader"] = stats.reader;
  result["threads"] = stats.threads;
  result["io_threads"] = stats.io_threads;
  result["reader_note"] = stats.reader_note;
  result["read_depth"] = stats.read_depth;
  result["read_ahead_bytes"] = stats.read_ahead_bytes;
  result["stages"] = stages;
  result["batches"] = stats.batches;
  result["consumer_wait_ns"] = stats.consumer_wait_ns;
  result["wall_ns"] = stats.wall_ns;
  result["ready_batches_sum"] = stats.ready_batches_sum;
  result["questions"] = stats.questions;
  result["rollbacks"] = stats.rollbacks;
  return result;
}

}  // namespace

void bind_engine(py::module_& module) {
  module.def("default_threads", &headrace::default_threads, py::arg("reserve_cpus") = 0,
             "See loader/include/headrace/threads.h.");
  module.def(
      "begin_exit", headrace::begin_exit,
      "To be called by the thread that ends the interpreter, before the engines are closed.");
  module.def(
      "time_without_gil", [] { return headrace::cpu_ns_without_gil; },
      "The processor's time, in nanoseconds, that this thread has spent in here without the GIL.");

  py::class_<PinnedAllocator, std::shared_ptr<PinnedAllocator>>(
      module, "PinnedAllocator", "Pinned memory for a BufferPool, by the context of one device.")
      .def(py::init<int>(), py::arg("device"))
      .def("stats", [](const PinnedAllocator& self) {
        const auto stats = self.stats();
        py::dict result;
        result["pinned_bytes"] = stats.pinned_bytes;
        result["pageable_bytes"] = stats.pageable_bytes;
        return result;
      });

  py::class_<OfferedMemory, std::shared_ptr<OfferedMemory>>(
      module, "OfferedMemory", "Memory for a BufferPool that the caller brings and keeps alive.")
      .def(py::init<>())
      .def(
          "offer",
          [](OfferedMemory& self, std::uintptr_t memory, std::size_t bytes) {
            self.offer(reinterpret_cast<void*>(memory), bytes);
          },
          py::arg("memory"), py::arg("bytes"))
      .def("withdraw", &OfferedMemory::withdraw, "Takes back what nobody took.");

  py::class_<BufferPool, std::shared_ptr<BufferPool>>(
      module, "BufferPool", "Recycles the memory of batches: keeps up to max_idle free blocks.")
      .def(py::init([](std::size_t max_idle, std::shared_ptr<PinnedAllocator> pinned,
                       std::shared_ptr<OfferedMemory> offered) {
             std::shared_ptr<headrace::Allocator> allocator = std::move(pinned);
             if (offered != nullptr) allocator = std::move(offered);
             if (allocator == nullptr) allocator = headrace::make_host_allocator();
             return std::make_shared<BufferPool>(std::move(allocator), max_idle);
           }),
           py::arg("max_idle"), py::arg("pinned") = py::none(), py::arg("offered") = py::none())
      .def("stats", [](const BufferPool& self) {
        const auto stats = self.stats();
        py::dict result;
        result["idle_blocks"] = stats.idle_blocks;
        result["idle_bytes"] = stats.idle_bytes;
        result["live_blocks"] = stats.live_blocks;
        result["allocations"] = stats.allocations;
        return result;
      });

  py::class_<Question>(module, "Question",
                       "A sample (or, for an opaque batch, a batch) that torch must compute.")
      .def_readonly("batch", &Question::batch)
      .def_readonly("row", &Question::row)
      .def_readonly("whole_batch", &Question::whole_batch)
      .def_readonly("collate", &Question::collate,
                    "It is about the collate function's draws for a batch of `row` rows.")
      .def_property_readonly("path",
                             [](const Question& self) { return to_python_path(self.sample.path); })
      .def_property_readonly("reason",
                             [](const Question& self) { return to_python_path(self.reason); })
      .def_readonly("random", &Question::random,
                    "The random stream before the sample's own draws.");

  py::class_<Batch>(module, "Batch", "A finished batch.")
      .def_readonly("id", &Batch::id)
      .def_readonly("rows", &Batch::rows)
      .def_property_readonly("has_fields", [](const Batch& self) { return !self.fields.empty(); })
      .def_readonly("failed_row", &Batch::failed_row)
      .def_readonly("skipped_rows", &Batch::skipped_rows)
      .def_readonly("random_after", &Batch::random_after)
      .def_readonly("random_before_collate", &Batch::random_before_collate)
      .def(
          "dlpack",
          [](const Batch& self) {
            py::list fields;
            for (const auto& field : self.fields) fields.append(to_dlpack(field, self.rows));
            return fields;
          },
          "DLPack capsules of the fields, image first; each owns its memory.");

  py::class_<EngineHandle>(module, "Engine", "headrace::Engine; see loader/include/headrace.")
      .def(py::init([](const Transform& transform, const std::vector<RandomStream>& streams,
                       std::shared_ptr<BufferPool> pool, int threads, std::size_t read_budget_bytes,
                       std::size_t max_batches_in_flight, std::uint64_t pixel_limit,
                       std::optional<RandomRules> own_streams, bool collate_draws,
                       const std::string& reader) {
             EngineOptions options;
             options.reader = reader_named(reader);
             options.own_streams = own_streams;
             options.threads = threads;
             options.read_budget_bytes = read_budget_bytes;
             options.max_batches_in_flight = max_batches_in_flight;
             options.pixel_limit = pixel_limit;
             options.collate_draws = collate_draws;
             options.pool = std::move(pool);
             return std::make_unique<EngineHandle>(options, transform, streams);
           }),
           py::arg("transform"), py::arg("streams"), py::kw_only(), py::arg("pool"),
           py::arg("threads"), py::arg("read_budget_bytes"), py::arg("max_batches_in_flight"),
           py::arg("pixel_limit"), py::arg("own_streams") = py::none(),
           py::arg("collate_draws") = false, py::arg("reader") = "auto")
      .def(
          "submit",
          [](EngineHandle& self, std::size_t stream, Samples& samples, const py::object& directory,
             const std::vector<SampleKey>& random_keys) {
            if (!random_keys.empty() && random_keys.size() != samples.size()) {
              throw py::value_error("as many keys as samples are needed");
            }
            self.keeper().release_dropped();
            std::optional<std::string> where;
            if (!directory.is_none()) where = from_python_path(directory);
            std::uint64_t id = 0;
            const auto begin = [&](Engine& engine, std::vector<Sample> converted) {
              for (std::size_t i = 0; i < random_keys.size(); ++i) {
                converted[i].random_key = random_keys[i];
              }
              id = engine.submit(stream, std::move(converted));
            };
            bool plain = false;
            self.use([&](Engine& engine) {
              auto converted = samples.convert_plain(where);
              plain = converted.has_value();
              if (plain) begin(engine, *std::move(converted));
            });
            if (!plain) {
              auto converted = samples.convert(where, self.keeper());
              self.use([&](Engine& engine) { begin(engine, std::move(converted)); });
            }
            return id;
          },
          py::arg("stream"), py::arg("samples"), py::arg("directory") = py::none(),
          py::arg("random_keys") = std::vector<SampleKey>(),
          "Begins a batch and gives its id. Relative paths begin in `directory`.")
      .def(
          "submit_opaque",
          [](const EngineHandle& self, std::size_t stream, std::string reason) {
            return self.get().submit_opaque(stream, std::move(reason));
          },
          py::arg("stream"), py::arg("reason"))
      .def("next", next_event, py::arg("timeout_ms"),
           "A Batch, a Question, or None after timeout_ms. Serves signals while it waits.")
      .def(
          "answer",
          [](const EngineHandle& self, const Question& question, const py::buffer& image,
             const RandomStream& random_after, std::optional<std::int64_t> label) {
            self.get().answer(question, PinnedBuffer(image).bytes(), random_after, label);
          },
          py::arg("question"), py::arg("image"), py::arg("random_after"),
          py::arg("label") = py::none())
      .def(
          "skip",
          [](const EngineHandle& self, const Question& question, const RandomStream& random_after) {
            self.get().skip(question, random_after);
          },
          py::arg("question"), py::arg("random_after"))
      .def(
          "fail",
          [](const EngineHandle& self, const Question& question, const RandomStream& random_after) {
            self.get().fail(question, random_after);
          },
          py::arg("question"), py::arg("random_after"))
      .def(
          "rewind",
          [](EngineHandle& self, std::size_t stream, const RandomStream& random) {
            self.use([&](Engine& engine) { engine.rewind(stream, random); });
          },
          py::arg("stream"), py::arg("random"))
      .def_property_readonly("in_flight", &EngineHandle::in_flight)
      .def_property_readonly("closed", &EngineHandle::closed)
      .def("stats", stats)
      .def("close", &EngineHandle::close, "Ends all work and joins the threads. Idempotent.");
}
