#include "app/launch/rank_processes.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <system_error>

namespace hone {

namespace fs = std::filesystem;

namespace {

// A signal handler can access static storage only.
volatile sig_atomic_t caught = 0;
void remember(int signal) { caught = signal; }

constexpr int kSignals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};

bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

/// This process's environment with the changes applied.
std::vector<std::string> merged_environment(const Environment& changes) {
  std::map<std::string, std::string> merged;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) merged[text.substr(0, equals)] = text.substr(equals + 1);
  }
  for (const auto& [name, value] : changes) {
    if (value.empty()) {
      merged.erase(name);
    } else {
      merged[name] = value;
    }
  }
  std::vector<std::string> result;
  for (const auto& [name, value] : merged) result.push_back(name + "=" + value);
  return result;
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

}  // namespace

std::string own_program() { return fs::read_symlink("/proc/self/exe").string(); }

int free_port() {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool found = descriptor >= 0 &&
                     ::bind(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
                     ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  const int error = errno;
  if (descriptor >= 0) ::close(descriptor);
  if (!found) throw std::system_error(error, std::generic_category(), "a free port");
  return ntohs(address.sin_port);
}

pid_t start_process(const std::vector<std::string>& command, const Environment& environment,
                    const ProcessOutput& output) {
  const std::vector<std::string> variables = merged_environment(environment);
  const std::vector<char*> arguments = pointers(command), entries = pointers(variables);
  const pid_t launcher = ::getpid();
  // A signal to the new process before it has its own handlers waits, else CaughtSignals would take it there.
  sigset_t blocked, before;
  ::sigemptyset(&blocked);
  for (const int signal : kSignals) ::sigaddset(&blocked, signal);
  ::sigprocmask(SIG_BLOCK, &blocked, &before);
  const pid_t pid = ::fork();
  if (pid != 0) {
    const int error = errno;
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    if (pid < 0) throw std::system_error(error, std::generic_category(), command.front());
    ::setpgid(pid, pid);
    return pid;
  }
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != launcher) ::_exit(127);  // the launcher died before prctl took effect
  for (const int signal : kSignals) {
    if (!is_ignored(signal)) ::signal(signal, SIG_DFL);
  }
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  const int null = ::open("/dev/null", O_RDONLY);
  if (null >= 0) ::dup2(null, STDIN_FILENO);
  if (output.out >= 0) ::dup2(output.out, STDOUT_FILENO);
  if (output.err >= 0) ::dup2(output.err, STDERR_FILENO);
  ::execve(arguments[0], arguments.data(), entries.data());
  ::_exit(127);
}

CaughtSignals::CaughtSignals() {
  caught = 0;
  for (const int number : kSignals) {
    if (is_ignored(number)) continue;
    signals_.push_back(number);
    struct sigaction action {};
    action.sa_handler = remember;  // without SA_RESTART: signals interrupt sleeps
    ::sigaction(number, &action, nullptr);
  }
}

CaughtSignals::~CaughtSignals() {
  for (const int signal : signals_) ::signal(signal, SIG_DFL);
}

int CaughtSignals::take() {
  const int signal = caught;
  caught = 0;
  return signal;
}

}  // namespace hone
