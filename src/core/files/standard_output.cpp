#include "core/files/standard_output.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

namespace hone {

namespace {

std::mutex capture_mutex;
OutputCapture::Sink* captured_by = nullptr;

}  // namespace

OutputCapture::OutputCapture(Sink sink) {
  const std::lock_guard lock(capture_mutex);
  HONE_ASSERT(captured_by == nullptr, "output is captured twice");
  captured_by = new Sink(std::move(sink));
}

OutputCapture::~OutputCapture() {
  const std::lock_guard lock(capture_mutex);
  delete std::exchange(captured_by, nullptr);
}

bool OutputCapture::active() {
  const std::lock_guard lock(capture_mutex);
  return captured_by != nullptr;
}

OutputLost::OutputLost(int error)
    : Error(ExitCode::kUserInput, std::string("standard output cannot be written: ") + std::strerror(error), "",
            "check where it goes and the free space there; what was printed is incomplete") {}

ReaderGone::ReaderGone() : std::runtime_error("the reader of standard output went away") {}

void throw_output_failure(int error) {
  if (error == EPIPE) throw ReaderGone();
  throw OutputLost(error);
}

int write_to_descriptor(int descriptor, std::string_view text) {
  if (descriptor == STDOUT_FILENO || descriptor == STDERR_FILENO) {
    const std::lock_guard lock(capture_mutex);
    if (captured_by != nullptr) {
      (*captured_by)(descriptor, text);
      return 0;
    }
  }
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      pollfd waiting{descriptor, POLLOUT, 0};
      ::poll(&waiting, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

void reserve_standard_descriptors() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest free number is this one.
    [[maybe_unused]] const int opened = ::open("/dev/null", descriptor == 0 ? O_WRONLY : O_RDONLY);
  }
}

}  // namespace hone
