#include "report/page/status_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "core/base/error.h"
#include "core/base/quiet_thread.h"
#include "report/http_server.h"
#include "report/page/page.h"
#include "report/page/run_record.h"

namespace hone {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr double kLeastPause = 2, kShare = 20;  // seconds; the pause over the time of reading
constexpr double kWatched = 30;                 // seconds after a request

/// What changes when a file of the folder does.
std::string signature_of(const fs::path& folder) {
  std::string signature;
  for (const char* name : kRecordFiles) {
    std::error_code error;
    const auto size = fs::file_size(folder / name, error);
    const auto time = fs::last_write_time(folder / name, error);
    if (!error) signature += fmt::format("{:x}-{:x}.", size, time.time_since_epoch().count());
  }
  return signature + "-";
}

}  // namespace

struct StatusServer::Impl {
  Impl(fs::path of, std::string address, int wanted)
      : folder(std::move(of)),
        run(folder),
        host(std::move(address)),
        server(host, wanted, {}, [this](const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
          answer(request, *reply);
        }) {
    thread = quiet_thread([this] { follow(); });
  }
  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    wake.notify_all();
    thread.join();
  }

  void answer(const HttpRequest& request, HttpReply& reply) {
    const std::string *name = request.header("host"), *last = request.header("last-event-id");
    if (name == nullptr || !is_own_host(*name, host)) {
      return reply.send(421, "text/plain", "this server answers requests for its own address\n");
    }
    const bool wants_page = request.path == "/", wants_events = request.path == "/events";
    if (request.method != "GET" || (!wants_page && !wants_events)) {
      return reply.send(404, "text/plain", "404 Not Found\n");
    }
    const std::lock_guard lock(mutex);
    asked = Clock::now();
    wake.notify_all();
    if (wants_page) return reply.send(200, "text/html; charset=utf-8", page_of_server());  // its first event has data
    const std::string again = id.empty() ? "retry: 300\n" : "retry: 2000\n";
    const bool is_new = !id.empty() && (last == nullptr || *last != id);
    reply.send(200, "text/event-stream", is_new ? again + "id: " + id + "\ndata: " + event + "\n\n" : again + "\n");
  }

  void follow() {
    std::unique_lock lock(mutex);
    double pause = 0;
    while (!stopping) {
      const bool watched = asked && Seconds(Clock::now() - *asked).count() < kWatched;
      if (!watched) {
        wake.wait(lock);
        continue;
      }
      lock.unlock();
      const std::string signature = signature_of(folder);
      const Clock::time_point begin = Clock::now();
      std::string data;
      if (signature != seen) data = read();
      const double seconds = Seconds(Clock::now() - begin).count();
      lock.lock();
      if (signature != seen) {
        seen = id = signature;
        event = std::move(data);
      }
      pause = std::max(kLeastPause, kShare * seconds);
      wake.wait_for(lock, Seconds(pause), [this] { return stopping; });
    }
  }

  std::string read() {
    try {
      return run_page_data(run);
    } catch (const UserError& error) {  // the run has not begun to write
      return waiting_page_data(error.what());
    }
  }

  const fs::path folder;
  RunRecordReader run;  // the thread's
  const std::string host;
  std::mutex mutex;  // guards what follows, but for run and seen
  std::condition_variable wake;
  bool stopping = false;
  std::optional<Clock::time_point> asked;
  std::string id, event;
  std::string seen;  // the thread's
  std::thread thread;
  HttpServer server;
};

StatusServer::StatusServer(fs::path folder, const std::string& host, int port)
    : impl_(std::make_unique<Impl>(std::move(folder), host, port)) {}
StatusServer::~StatusServer() = default;
int StatusServer::port() const { return impl_->server.port(); }

}  // namespace hone
