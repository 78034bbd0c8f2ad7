#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>

#include "cuda_driver.h"
#include "fake_cuda.h"
#include "headrace/error.h"
#include "support.h"

namespace headrace {
namespace {

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kDeviceFailed);
    return error.what();
  }
  return "no error";
}

TEST_CASE("the driver's errors come with its name, its text and a remedy", "[cuda_driver]") {
  fake_cuda::reset({});
  const CudaDriver& driver = CudaDriver::get();
  REQUIRE_THAT(
      message_of([&] { driver.check("cuMemAlloc", cuda::kOutOfMemory); }),
      test::contains("device: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (out of memory): free"));
}

TEST_CASE("a device that is not there is an error", "[cuda_driver]") {
  fake_cuda::reset({.devices = 1});
  REQUIRE_THAT(message_of([] { const PrimaryContext context(1); }),
               test::contains("CUDA_VISIBLE_DEVICES"));
  CHECK(fake_cuda::leaks().empty());
}

TEST_CASE("a context is current within its scope only, and captures go on", "[cuda_driver]") {
  fake_cuda::reset({.devices = 2});
  const PrimaryContext first(0);
  const PrimaryContext second(1);
  const cuda::Functions& cu = first.driver().functions();
  const auto create = [&cu] {
    cuda::Event event = nullptr;
    const bool created = cu.cuEventCreate(&event, 0) == cuda::kSuccess;
    if (created) cu.cuEventDestroy(event);
    return created;
  };
  {
    const PrimaryContext::Scope outer(first);
    fake_cuda::begin_capture(nullptr);
    {
      const PrimaryContext::Scope inner(second);
      void* memory = nullptr;
      REQUIRE(cu.cuMemHostAlloc(&memory, 64, cuda::kMemHostAllocPortable) == cuda::kSuccess);
      cu.cuMemFreeHost(memory);
    }
    fake_cuda::end_capture(nullptr);
    CHECK(create());
  }
  CHECK(fake_cuda::complaints().empty());
  CHECK_FALSE(create());
}

TEST_CASE("a forked child gets an error, and harms nothing", "[cuda_driver]") {
  fake_cuda::reset({});
  const auto context = std::make_unique<PrimaryContext>(0);
  const auto calls = fake_cuda::calls();
  const pid_t child = fork();
  if (child == 0) {
    const std::string message = message_of([] { CudaDriver::get(); });
    const_cast<std::unique_ptr<PrimaryContext>&>(context).reset();
    const bool good = message.find("spawn") != std::string::npos && fake_cuda::calls() == calls;
    _exit(good ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

}  // namespace
}  // namespace headrace
