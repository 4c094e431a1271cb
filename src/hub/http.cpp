#include "hub/http.h"

#include <fmt/format.h>
#include <httplib.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "core/base/printable.h"
#include "core/base/program.h"
#include "core/files/answer_limits.h"
#include "hub/certificates.h"
#include "hub/proxy.h"

namespace hone {
namespace {

using Kind = HubError::Kind;
using Clock = std::chrono::steady_clock;

constexpr int kMostRedirects = 8;
constexpr int64_t kHeadBytes = 1 << 20;        // the most bytes of an answer beside its body
constexpr double kSlowest = 4096;              // bytes in a second, below which a server counts as hanging
constexpr std::chrono::seconds kPatience{60};  // for an answer's head, and between measurements of that rate
constexpr double kLongestPause = 300;

std::optional<uint64_t> whole_of(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string header_of(const HttpHeaders& headers, const std::string& name) {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

/// Seconds of Retry-After, or of the window that RateLimit says ("...;t=55"); 0 without.
double wanted_pause(const HttpHeaders& headers) {
  if (const auto seconds = whole_of(header_of(headers, "retry-after"))) return static_cast<double>(*seconds);
  const std::string limit = header_of(headers, "ratelimit");
  const size_t at = limit.find("t=");
  if (at == std::string::npos) return 0;
  const size_t end = limit.find_first_not_of("0123456789", at + 2);
  const auto seconds = whole_of(std::string_view(limit).substr(at + 2, end == std::string::npos ? end : end - at - 2));
  return seconds ? static_cast<double>(*seconds) : 0;
}

std::string plain_etag(std::string etag) {
  if (etag.starts_with("W/")) etag.erase(0, 2);
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') etag = etag.substr(1, etag.size() - 2);
  return etag;
}

HubError error_of(const Url& url, int status, const HttpHeaders& headers) {
  const bool later = status == 408 || status == 429 || status >= 500;
  const std::string message = short_line(header_of(headers, "x-error-message"));
  HubError error(later ? Kind::kRetry : Kind::kAnswer,
                 fmt::format("{} answered with {}{}", url.origin(), status, message.empty() ? "" : ": " + message),
                 status);
  error.after = wanted_pause(headers);
  error.code = header_of(headers, "x-error-code");
  error.message = message;
  return error;
}

}  // namespace

struct HubHttp::Connection {
  explicit Connection(const Url& url) : client(url.origin()), limits([this] { client.stop(); }) {
    client.set_url_encode(false);  // signatures are over the address as it is
    client.set_decompress(false);
    client.set_keep_alive(true);
    client.set_tcp_nodelay(true);
    client.set_connection_timeout(10);
    client.set_read_timeout(30);
    client.set_write_timeout(30);
    client.set_socket_options([this](socket_t socket) { limits.use_socket(socket); });
    if (url.tls) {
#ifdef CPPHTTPLIB_OPENSSL_SUPPORT
      const Certificates trusted = trusted_certificates();
      client.set_ca_cert_path(trusted.file, trusted.folder);
      client.enable_server_certificate_verification(true);
#else
      throw HubError(Kind::kRefused, "this build has no TLS: cpp-httplib was built without OpenSSL");
#endif
    }
    const std::optional<Proxy> proxy = proxy_for(url);
    if (!proxy) return;
    by = fmt::format(" by the proxy {}:{}", proxy->host, proxy->port);
    client.set_proxy(proxy->host, proxy->port);
    if (!proxy->user.empty()) client.set_proxy_basic_auth(proxy->user, proxy->password);
  }

  httplib::Client client;
  std::string by;       // for messages
  AnswerLimits limits;  // last, so it is destroyed first: it stops the client
};

struct HubHttp::Request {
  Url url;
  std::string range = {};  ///< the header's value; "": none
  uint64_t most_bytes = 0;
  /// Whether the body is wanted. May throw.
  std::function<bool(const Url& url, int status, const HttpHeaders& headers)> head = {};
  /// Whether more is wanted. May throw.
  std::function<bool(std::string_view bytes)> body = {};
  bool has_all = false;  ///< `body` wanted no more
  int status = 0;
};

HubHttp::HubHttp(HubSettings settings) : settings_(std::move(settings)) {}
HubHttp::~HubHttp() = default;

void HubHttp::cancel() {
  cancelled_ = true;
  const std::lock_guard lock(mutex_);
  for (const auto& [origin, connection] : connections_) connection->client.stop();
}

HubHttp::Connection& HubHttp::connection_to(const Url& url) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Connection>& connection = connections_[url.origin()];
  if (!connection) connection = std::make_unique<Connection>(url);
  return *connection;
}

namespace {

/// What became of a call that the library could not finish.
HubError no_answer(const Url& url, const std::string& by, httplib::Error error, AnswerLimits::Exceeded exceeded) {
  const std::string server = url.origin() + by;
  if (exceeded == AnswerLimits::Exceeded::kBytes) {
    return {Kind::kRefused, fmt::format("the answer of {} does not end", server)};
  }
  if (exceeded == AnswerLimits::Exceeded::kTime) {
    return {Kind::kRetry, fmt::format("{} takes too long to answer", server)};
  }
  switch (error) {
#ifdef CPPHTTPLIB_OPENSSL_SUPPORT
    case httplib::Error::SSLServerVerification:
      return {Kind::kTrust, fmt::format("the certificate of {} is not trusted", server)};
    case httplib::Error::SSLLoadingCerts:
      return {Kind::kTrust, fmt::format("the certificates to trust could not be read, for {}", server)};
#endif
    case httplib::Error::Connection:
    case httplib::Error::ConnectionTimeout:
      return {Kind::kRetry, fmt::format("{} cannot be reached", server)};
    default:
      return {Kind::kRetry, fmt::format("the connection to {} was cut ({})", server, httplib::to_string(error))};
  }
}

/// Throws once the bytes of a body come slower than kSlowest: a read that waits is not the only way to hang.
class SlowWatch {
 public:
  void take(size_t bytes, const Url& url) {
    received_ += static_cast<double>(bytes);
    const Clock::time_point now = Clock::now();
    if (now - since_ < kPatience) return;
    const double seconds = std::chrono::duration<double>(now - since_).count();
    if (received_ < kSlowest * seconds) {
      throw HubError(Kind::kRetry,
                     fmt::format("{} sends only {:.0f} bytes a second", url.origin(), received_ / seconds));
    }
    since_ = now;
    received_ = 0;
  }

 private:
  Clock::time_point since_ = Clock::now();
  double received_ = 0;
};

}  // namespace

HttpHeaders HubHttp::exchange_once(Request& request) {
  constexpr uint64_t kUnwanted = 1 << 16;  // bytes of a page that says an error
  const Url url = request.url;
  Connection& connection = connection_to(url);
  httplib::Headers sent = {{"Accept-Encoding", "identity"}, {"User-Agent", fmt::format("hone/{}", version())}};
  if (!settings_.token.empty() && url.same_origin(settings_.endpoint)) {
    sent.emplace("Authorization", "Bearer " + settings_.token);
  }
  if (!request.range.empty()) sent.emplace("Range", request.range);

  HttpHeaders headers;
  std::exception_ptr failure;
  bool wanted = false;
  uint64_t unwanted = 0;
  SlowWatch rate;
  const auto guarded = [&](auto&& action) {
    if (cancelled_) return false;
    try {
      return action();
    } catch (...) {
      failure = std::current_exception();
      return false;
    }
  };
  const auto on_head = [&](const httplib::Response& response) {
    return guarded([&] {
      request.status = response.status;
      headers.clear();
      for (const auto& [name, value] : response.headers) headers.emplace(in_lower_case(name), value);
      wanted = request.head(url, response.status, headers);
      return true;
    });
  };
  const auto on_body = [&](const char* bytes, size_t count) {
    return guarded([&] {
      if (!wanted) return (unwanted += count) <= kUnwanted;
      rate.take(count, url);
      request.has_all = !request.body({bytes, count});
      return !request.has_all;
    });
  };
  const double seconds = 120 + static_cast<double>(request.most_bytes) / kSlowest;
  connection.limits.begin(static_cast<int64_t>(request.most_bytes + request.most_bytes / 8) + kHeadBytes,
                          std::chrono::milliseconds(static_cast<int64_t>(1000 * std::min(seconds, 1e9))));
  const httplib::Result result = connection.client.Get(url.path, sent, on_head, on_body);
  const AnswerLimits::Exceeded exceeded = connection.limits.end();
  if (failure) std::rethrow_exception(failure);
  if (cancelled_) throw HubError(Kind::kRefused, "the download was stopped");
  const bool read = result || request.has_all || (result.error() == httplib::Error::Canceled && unwanted > kUnwanted);
  if (!read) throw no_answer(url, connection.by, result.error(), exceeded);
  return headers;
}

HttpHeaders HubHttp::exchange(Request& request) {
  const bool began_with_tls = request.url.tls;
  for (int redirects = 0;; ++redirects) {
    HttpHeaders headers = exchange_once(request);
    const int status = request.status;
    if (status < 300 || status == 304) return headers;
    if (status >= 400) throw error_of(request.url, status, headers);
    const std::string location = header_of(headers, "location");
    const std::optional<Url> target = resolve_url(request.url, location);
    if (!target) {
      throw HubError(Kind::kRefused, fmt::format("{} redirects to '{}', which is not an address", request.url.origin(),
                                                 short_line(location)));
    }
    if (!target->tls && (began_with_tls || request.url.tls || !target->loopback())) {
      throw HubError(Kind::kRefused, fmt::format("{} redirects to {}, which has no TLS", request.url.origin(),
                                                 short_line(target->origin())));
    }
    if (redirects == kMostRedirects) {
      throw HubError(Kind::kRefused, fmt::format("{} redirects without end", request.url.origin()));
    }
    request.url = *target;
  }
}

HubHttp::Answer HubHttp::get(const Url& url, size_t most_bytes, int tries) {
  Answer answer;
  const auto call = [&] {
    answer = {};
    Request request{.url = url, .most_bytes = most_bytes};
    request.head = [](const Url&, int status, const HttpHeaders& headers) {
      if (status == 200 && headers.contains("content-encoding")) {
        throw HubError(Kind::kRefused, "the answer is compressed, which was not asked for");
      }
      return status == 200;
    };
    request.body = [&](std::string_view bytes) {
      if (answer.body.size() + bytes.size() > most_bytes) {
        throw HubError(Kind::kRefused, fmt::format("the answer of {} does not end", url.origin()));
      }
      answer.body += bytes;
      return true;
    };
    answer.headers = exchange(request);
    answer.status = request.status;
    answer.url = request.url;
    if (answer.status != 200) throw error_of(request.url, answer.status, answer.headers);
  };
  repeat_call(tries, call, [&](double seconds) {
    const auto until = Clock::now() + std::chrono::duration<double>(seconds);
    while (!cancelled_ && Clock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return !cancelled_;
  });
  return answer;
}

namespace {

HubHttp::FileHead file_head(const HttpHeaders& headers, int status) {
  HubHttp::FileHead head;
  head.commit = header_of(headers, "x-repo-commit");
  head.etag = plain_etag(header_of(headers, "x-linked-etag"));
  head.size = whole_of(header_of(headers, "x-linked-size"));
  // The answer itself, not one that leads elsewhere, describes the file in the usual headers.
  if (head.etag.empty() && status < 300) head.etag = plain_etag(header_of(headers, "etag"));
  return head;
}

/// Where the body of an answer begins in the file. Throws HubError if it is not what was asked for.
uint64_t first_of_body(const Url& url, int status, const HttpHeaders& headers, uint64_t first, uint64_t size) {
  const auto refuse = [&](const std::string& what) {
    throw HubError(Kind::kRefused, fmt::format("{} {}", url.origin(), what));
  };
  if (headers.contains("content-encoding")) refuse("compresses the file, which was not asked for");
  if (status == 200) {
    const std::string length = header_of(headers, "content-length");
    if (!length.empty() && whole_of(length) != size) {
      refuse(fmt::format("has a file of {} bytes, where the hub lists {}", short_line(length), size));
    }
    return 0;
  }
  const std::string range = header_of(headers, "content-range");
  const size_t dash = range.find('-'), slash = range.find('/');
  const bool shaped = range.starts_with("bytes ") && dash != std::string::npos && slash != std::string::npos;
  const std::string total = shaped ? range.substr(slash + 1) : "";
  if (!shaped || whole_of(std::string_view(range).substr(6, dash - 6)) != first) {
    refuse(fmt::format("sends other bytes than were asked for ({})", short_line(range)));
  }
  if (total != "*" && whole_of(total) != size) {
    refuse(fmt::format("has a file of {} bytes, where the hub lists {}", short_line(total), size));
  }
  return first;
}

}  // namespace

bool HubHttp::get_range(const Url& url, uint64_t first, uint64_t count, uint64_t size,
                        const std::function<void(const FileHead&)>& seen,
                        const std::function<void(std::string_view)>& sink, Url& location) {
  uint64_t position = 0;  // where the next byte of the body belongs in the file
  bool whole = false;
  Request request{.url = url, .most_bytes = size};
  if (count != size) request.range = fmt::format("bytes={}-{}", first, first + count - 1);
  request.head = [&](const Url& from, int status, const HttpHeaders& headers) {
    if (status < 400 && from.same_origin(settings_.endpoint)) seen(file_head(headers, status));
    if (status != 200 && status != 206) return false;
    position = first_of_body(from, status, headers, first, size);
    whole = status == 200 && count != size;
    return true;
  };
  request.body = [&](std::string_view bytes) {
    const uint64_t begin = std::max(position, first), end = std::min(position + bytes.size(), first + count);
    if (begin < end) sink(bytes.substr(begin - position, end - begin));
    position += bytes.size();
    return position < first + count;
  };
  try {
    const HttpHeaders headers = exchange(request);
    if (request.status != 200 && request.status != 206) throw error_of(request.url, request.status, headers);
  } catch (HubError& error) {
    // A signed address has expired, or a store has other trouble: the hub gives another one.
    error.of_store = error.status > 0 && !request.url.same_origin(settings_.endpoint);
    if (error.kind == Kind::kAnswer && error.of_store) error.kind = Kind::kRetry;
    throw;
  }
  if (position < first + count) {
    throw HubError(Kind::kRetry, fmt::format("the connection to {} was cut", request.url.origin()));
  }
  location = request.url;
  return whole;
}

double pause_before(int number, double after) {
  return std::max(after, std::min(30.0, 0.25 * (1 << std::min(number, 10))));
}

void repeat_call(int tries, const std::function<void()>& call, const std::function<bool(double)>& pause) {
  for (int number = 1;; ++number) {
    try {
      return call();
    } catch (const HubError& error) {
      const double seconds = pause_before(number, error.after);
      if (error.kind != Kind::kRetry || number >= tries || seconds > kLongestPause || !pause(seconds)) throw;
    }
  }
}

}  // namespace hone
