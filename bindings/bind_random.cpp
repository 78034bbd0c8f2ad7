#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <stdexcept>

#include "bind.h"
#include "buffers.h"
#include "headrace/random.h"

namespace py = pybind11;

namespace {

using headrace::PinnedBuffer;
using headrace::RandomRules;
using headrace::RandomStream;
using headrace::SampleKey;

RandomRules rules(bool fused_uniform, std::uint64_t wide_range) {
  return {.fused_uniform = fused_uniform, .wide_range = wide_range};
}

/// `count` draws as the bytes of a native array: Python reads them without needing numpy here.
template <typename Draw>
py::bytes draw_many(std::size_t count, const Draw& draw) {
  using Value = decltype(draw());
  py::bytes result(nullptr, count * sizeof(Value));
  char* to = PyBytes_AS_STRING(result.ptr());
  for (std::size_t i = 0; i < count; ++i, to += sizeof(Value)) {
    const Value value = draw();
    std::memcpy(to, &value, sizeof value);
  }
  return result;
}

}  // namespace

void bind_random(py::module_& module) {
  constexpr RandomRules kDefaults;
  const auto fused_arg = py::arg("fused_uniform") = kDefaults.fused_uniform;
  const auto wide_arg = py::arg("wide_range") = kDefaults.wide_range;

  py::class_<SampleKey>(module, "SampleKey", "Names a sample's own random stream.")
      .def(py::init([](std::uint64_t seed, std::uint32_t epoch, std::uint64_t index) {
             return SampleKey{.seed = seed, .epoch = epoch, .index = index};
           }),
           py::arg("seed"), py::arg("epoch"), py::arg("index"));

  py::class_<RandomRules>(module, "RandomRules",
                          "Arithmetic that differs between builds of torch; see RandomStream.")
      .def(py::init(&rules), py::kw_only(), fused_arg, wide_arg);

  module.def("philox4x32", &headrace::philox4x32, py::arg("counter"), py::arg("key"),
             "Philox4x32-10: four 32-bit words from a counter of four and a key of two.");

  py::class_<RandomStream>(module, "RandomStream",
                           "torch's default CPU generator, draw for draw.\n\n"
                           "Args:\n"
                           "    seed: as for torch.manual_seed; the low 32 bits count.\n"
                           "    fused_uniform: uniform_(a, b) rounds once (vectorised kernels).\n"
                           "    wide_range: randint takes two words from this range on.")
      .def(py::init([](std::uint64_t seed, bool fused_uniform, std::uint64_t wide_range) {
             return RandomStream(seed, rules(fused_uniform, wide_range));
           }),
           py::arg("seed"), py::kw_only(), fused_arg, wide_arg)
      .def_static(
          "of_sample",
          [](const SampleKey& key, bool fused_uniform, std::uint64_t wide_range) {
            return RandomStream(key, rules(fused_uniform, wide_range));
          },
          py::arg("key"), py::kw_only(), fused_arg, wide_arg,
          "The sample's own stream: words of Philox4x32-10, as a state of torch's generator.")
      .def_static(
          "from_torch_state",
          [](const py::buffer& state, bool fused_uniform, std::uint64_t wide_range) {
            return RandomStream::from_torch_state(PinnedBuffer(state).bytes(),
                                                  rules(fused_uniform, wide_range));
          },
          py::arg("state"), py::kw_only(), fused_arg, wide_arg,
          "The stream that continues torch.get_rng_state() (its 5056 bytes).")
      .def(
          "to_torch_state",
          [](const RandomStream& self, const py::buffer& state) {
            self.to_torch_state(PinnedBuffer(state, true).writable_bytes());
          },
          py::arg("state"),
          "Writes the stream into a buffer that holds a torch state: position, initial seed and\n"
          "cached normal draws.")
      .def(
          "copy", [](const RandomStream& self) { return self; }, "A snapshot.")
      .def(
          "rand_many",
          [](RandomStream& self, std::size_t count) {
            return draw_many(count, [&] { return self.rand(); });
          },
          py::arg("count"), "`count` times torch.rand(1), as float32 bytes.")
      .def(
          "uniform_many",
          [](RandomStream& self, double low, double high, std::size_t count) {
            return draw_many(count, [&] { return self.uniform(low, high); });
          },
          py::arg("low"), py::arg("high"), py::arg("count"),
          "`count` times torch.empty(1).uniform_(low, high), as float32 bytes.")
      .def(
          "randint_many",
          [](RandomStream& self, std::int64_t low, std::int64_t high, std::size_t count) {
            if (low >= high) throw std::invalid_argument("randint needs low < high");
            return draw_many(count, [&] { return self.randint(low, high); });
          },
          py::arg("low"), py::arg("high"), py::arg("count"),
          "`count` times torch.randint(low, high, (1,)), as int64 bytes.")
      .def("skip", &RandomStream::skip, py::arg("words"), "Moves on by raw 32-bit words.")
      .def("same_position", &RandomStream::same_position, py::arg("other"),
           "Whether all later draws agree.")
      .def_property_readonly("words_drawn", &RandomStream::words_drawn,
                             "Raw 32-bit words drawn or skipped since construction.");
}
