// Serves the page of a run while it runs, or of any run's folder: what report.html shows, which the page updates.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

namespace hone {

/// Serves GET / (the page) and GET /events (server-sent events: the data of the page, whenever they have changed);
/// read-only. It reads what is new in the folder on a thread of its own, only while somebody looks, at most every two
/// seconds and for a twentieth of the time; a slow reader costs no more than a connection (HttpLimits). Requests with a
/// foreign Host are refused.
class StatusServer {
 public:
  /// `port` 0: any free one. Throws std::system_error if it is not available.
  StatusServer(std::filesystem::path folder, const std::string& host, int port);
  ~StatusServer();
  StatusServer(const StatusServer&) = delete;
  StatusServer& operator=(const StatusServer&) = delete;

  int port() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hone
