#include "headrace/error.h"

#include <system_error>
#include <utility>

namespace headrace {
namespace {

std::string describe(const std::string& message, const ErrorContext& context) {
  std::string text = context.stage;
  if (!context.path.empty()) text += ": " + context.path;
  if (context.sample_index >= 0) text += " (sample " + std::to_string(context.sample_index) + ")";
  text += ": " + message;
  if (context.system_errno != 0) {
    text += ": " + std::generic_category().message(context.system_errno);
  }
  return text;
}

}  // namespace

Error::Error(ErrorCode code, const std::string& message, ErrorContext context)
    : std::runtime_error(describe(message, context)),
      code_(code),
      message_(message),
      context_(std::move(context)) {}

}  // namespace headrace
