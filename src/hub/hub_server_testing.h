// For tests: a hub on this machine, with the calls that a download makes and faults on request. Its repositories are
// the only state; a test may change them while it runs.
#pragma once

#include <fmt/format.h>
#include <httplib.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/checksum.h"
#include "core/text/json.h"
#include "hub/certificate_testing.h"
#include "hub/part_file.h"

namespace hone::testing {

/// Bytes that differ from place to place.
inline std::string test_bytes(size_t count, uint32_t seed = 1) {
  std::string bytes(count, '\0');
  for (char& c : bytes) c = static_cast<char>((seed = seed * 1664525u + 1013904223u) >> 24);
  return bytes;
}

inline std::string hash_of(const std::string& bytes, bool large) {
  static std::mutex mutex;
  static std::map<std::pair<uint64_t, bool>, std::string> known;
  const std::lock_guard lock(mutex);
  // Large files of the tests differ at their beginnings or ends.
  constexpr size_t kSeen = 4096;
  const std::string_view view = bytes;
  const uint64_t key = Xxh64(bytes.size())
                           .update(view.substr(0, kSeen))
                           .update(view.substr(bytes.size() - std::min(kSeen, bytes.size())))
                           .digest();
  std::string& text = known[{key, large}];
  if (!text.empty()) return text;
  RepoFile file;
  file.size = bytes.size();
  if (large) file.sha256 = "x";
  BlobHash hash(file);
  hash.update(bytes);
  return text = hash.digest();
}

class HubServer {
 public:
  struct File {
    std::string bytes;
    bool large = false;          ///< Git LFS: a redirect to the store, on another name of this machine
    std::string sent = {};       ///< other bytes than those listed; "": the same
    std::string listed_as = {};  ///< another name in the list of files
  };
  struct Repository {
    std::map<std::string, File> files;
    std::string commit = "0123456789abcdef0123456789abcdef01234567";
    bool gated = false;
  };

  /// What goes wrong.
  struct Faults {
    std::atomic<int> busy = 0;               ///< so many answers 503 before others
    std::atomic<int> limited = 0;            ///< the same, 429 with Retry-After: 1
    std::atomic<int> cut = 0;                ///< so many bodies of the store end in their middle
    std::atomic<bool> no_ranges = false;     ///< the store sends the whole file
    std::atomic<bool> endless_body = false;  ///< the store's bodies do not end
    std::atomic<bool> endless_list = false;
    std::atomic<bool> to_plain = false;  ///< redirects to an address that is neither TLS nor this machine
    std::atomic<int> expired = 0;        ///< so many signed addresses that the store refuses
    std::atomic<int> pause_us = 0;       ///< a pause of the store between blocks of 64 KiB
    std::optional<std::string> other_etag, other_size, other_commit;  ///< headers of the hub
  };

  /// With a certificate: for https, where the store is 127.0.0.1 and the hub localhost.
  explicit HubServer(const TestCertificate* certificate = nullptr) : tls_(certificate != nullptr) {
    if (tls_) {
      server_ = std::make_unique<httplib::SSLServer>(certificate->file.c_str(), certificate->key.c_str());
    } else {
      server_ = std::make_unique<httplib::Server>();
    }
    server_->set_keep_alive_max_count(100'000);
    server_->set_write_timeout(60);  // clients wait for their disk
    server_->new_task_queue = [] { return new httplib::ThreadPool(32); };
    server_->Get(R"(/api/(models|datasets)/(.+)/revision/(.+))",
                 [this](const auto& request, auto& response) { answer_info(request, response); });
    server_->Get(R"(/api/(models|datasets)/(.+)/tree/(.+))",
                 [this](const auto& request, auto& response) { answer_tree(request, response); });
    server_->Get(R"(/api/(models|datasets))",
                 [this](const auto& request, auto& response) { answer_search(request, response); });
    server_->Get(R"(/store/(.+))", [this](const auto& request, auto& response) { answer_store(request, response); });
    server_->Get(R"(/(.+)/resolve/([^/]+)/(.+))",
                 [this](const auto& request, auto& response) { answer_file(request, response); });
    port_ = server_->bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_->listen_after_bind(); });
    while (!server_->is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ~HubServer() {
    server_->stop();
    thread_.join();
  }
  HubServer(const HubServer&) = delete;
  HubServer& operator=(const HubServer&) = delete;

  std::string endpoint() const { return fmt::format("{}:{}", tls_ ? "https://localhost" : "http://127.0.0.1", port_); }
  int port() const { return port_; }

  /// "models/org/name" or "datasets/org/name".
  Repository& operator[](const std::string& name) { return repositories_[name]; }

  /// Adds a model with a small configuration and weights of so many bytes.
  Repository& add_model(const std::string& id, size_t bytes = 100'000) {
    Repository& repository = repositories_["models/" + id];
    repository.files["config.json"] = {R"({"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"]})"};
    repository.files["tokenizer.json"] = {"{}"};
    repository.files["model.safetensors"] = {test_bytes(bytes), true};
    return repository;
  }

  Faults faults;
  int page = 1000;           ///< entries of a page of the list
  uint64_t listed_size = 0;  ///< the size of large files in the list; 0: their own
  std::string token;         ///< that calls of the hub must have; "": none

  int requests(const std::string& part) const {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(std::count_if(
        seen_.begin(), seen_.end(), [&](const std::string& path) { return path.find(part) != std::string::npos; }));
  }
  /// Calls of the store that had a token.
  int leaked() const { return leaked_; }
  uint64_t store_bytes() const { return store_bytes_; }

 private:
  using Request = httplib::Request;
  using Response = httplib::Response;

  Repository* find(const std::string& key) {
    const auto found = repositories_.find(key);
    return found == repositories_.end() ? nullptr : &found->second;
  }

  static void fail(Response& response, int status, const char* code, const char* message) {
    response.status = status;
    if (*code != 0) response.set_header("X-Error-Code", code);
    response.set_header("X-Error-Message", message);
  }

  /// Whether the call is answered with a fault, or without the right token.
  bool refused(const Request& request, Response& response) {
    {
      const std::lock_guard lock(mutex_);
      seen_.push_back(request.path);
    }
    if (faults.busy > 0 && faults.busy-- > 0) return fail(response, 503, "", "busy"), true;
    if (faults.limited > 0 && faults.limited-- > 0) {
      response.set_header("Retry-After", "1");
      return fail(response, 429, "", "slower"), true;
    }
    if (!token.empty() && request.get_header_value("Authorization") != "Bearer " + token) {
      return fail(response, 401, "RepoNotFound", "Repository not found"), true;
    }
    return false;
  }

  Repository* repository_of(const Request& request, Response& response) {
    if (refused(request, response)) return nullptr;
    Repository* repository = find(request.matches[1].str() + "/" + request.matches[2].str());
    if (repository == nullptr) fail(response, token.empty() ? 401 : 404, "RepoNotFound", "Repository not found");
    return repository;
  }

  void answer_info(const Request& request, Response& response) {
    Repository* repository = repository_of(request, response);
    if (repository == nullptr) return;
    const std::string revision = request.matches[3];
    if (revision != "main" && revision != repository->commit) {
      const Repository* branch = find(request.matches[1].str() + "/" + request.matches[2].str() + "@" + revision);
      if (branch == nullptr) return fail(response, 404, "RevisionNotFound", "Invalid rev id");
      repository = const_cast<Repository*>(branch);
    }
    const std::string id = request.matches[2];
    response.set_content(Json({{"_id", "0"},
                               {"id", id},
                               {"modelId", id},
                               {"sha", repository->commit},
                               {"tags", Json::array()},
                               {"private", false}})
                             .dump(),
                         "application/json");
  }

  /// The repository or the branch that has this commit.
  Repository* at_commit(const std::string& key, const std::string& commit) {
    for (auto& [name, repository] : repositories_) {
      if ((name == key || name.starts_with(key + "@")) && (repository.commit == commit || commit == "main"))
        return &repository;
    }
    return nullptr;
  }

  void answer_tree(const Request& request, Response& response) {
    if (repository_of(request, response) == nullptr) return;
    const std::string key = request.matches[1].str() + "/" + request.matches[2].str();
    const Repository* repository = at_commit(key, request.matches[3]);
    if (repository == nullptr) return fail(response, 404, "RevisionNotFound", "Invalid rev id");
    const size_t begin = request.has_param("cursor") ? std::stoul(request.get_param_value("cursor")) : 0;
    Json entries = Json::array();
    if (begin == 0)
      entries.push_back({{"type", "directory"}, {"path", "folder"}, {"oid", std::string(40, 'a')}, {"size", 0}});
    size_t at = 0;
    for (const auto& [path, file] : repository->files) {
      if (at++ < begin) continue;
      if (entries.size() >= static_cast<size_t>(page)) break;
      Json entry = {{"type", "file"},
                    {"path", file.listed_as.empty() ? path : file.listed_as},
                    {"oid", hash_of(file.bytes, false)},
                    {"size", file.bytes.size()}};
      if (file.large) {
        if (listed_size > 0) entry["size"] = listed_size;
        entry["lfs"] = {{"oid", hash_of(file.bytes, true)}, {"size", file.bytes.size()}, {"pointerSize", 134}};
        entry["xetHash"] = std::string(64, 'c');
      }
      entries.push_back(std::move(entry));
    }
    const size_t next = begin + entries.size() - (begin == 0 ? 1 : 0);
    if (next < repository->files.size() || faults.endless_list) {
      response.set_header("Link", fmt::format("<{}{}?recursive=true&cursor={}>; rel=\"next\"", endpoint(), request.path,
                                              faults.endless_list ? 0 : next));
    }
    response.set_content(entries.dump(), "application/json");
  }

  void answer_search(const Request& request, Response& response) {
    if (refused(request, response)) return;
    const std::string kind = request.matches[1].str() + "/", wanted = request.get_param_value("search");
    const std::string owner = request.has_param("author") ? kind + request.get_param_value("author") + "/" : kind;
    Json found = Json::array();
    for (const auto& [name, repository] : repositories_) {
      if (name.starts_with(owner) && name.find(wanted) != std::string::npos)
        found.push_back({{"id", name.substr(kind.size())}});
    }
    response.set_content(found.dump(), "application/json");
  }

  void answer_file(const Request& request, Response& response) {
    if (refused(request, response)) return;
    std::string key = request.matches[1];
    if (!key.starts_with("datasets/")) key = "models/" + key;
    const std::string commit = request.matches[2], path = request.matches[3];
    Repository* repository = at_commit(key, commit);
    if (repository == nullptr) return fail(response, 404, "RepoNotFound", "Repository not found");
    if (repository->gated) return fail(response, 403, "GatedRepo", "Access to it is restricted");
    const auto file = repository->files.find(path);
    if (file == repository->files.end()) {
      response.set_header("X-Repo-Commit", repository->commit);
      return fail(response, 404, "EntryNotFound", "Entry not found");
    }
    const std::string hash = hash_of(file->second.bytes, file->second.large);
    response.set_header("X-Repo-Commit", faults.other_commit.value_or(repository->commit));
    if (!file->second.large) {
      response.set_header("ETag", "\"" + faults.other_etag.value_or(hash) + "\"");
      const std::string& bytes = file->second.sent.empty() ? file->second.bytes : file->second.sent;
      response.set_content(bytes, "text/plain");
      return;
    }
    response.set_header("X-Linked-Etag", "\"" + faults.other_etag.value_or(hash) + "\"");
    response.set_header("X-Linked-Size", faults.other_size.value_or(std::to_string(file->second.bytes.size())));
    response.set_header("X-Xet-Hash", std::string(64, 'c'));
    response.set_redirect(faults.to_plain ? "http://example.invalid/file"
                                          : fmt::format("{}:{}/store/{}?Signature=a+b,c;d",
                                                        tls_ ? "https://127.0.0.1" : "http://localhost", port_, hash));
  }

  void answer_store(const Request& request, Response& response) {
    {
      const std::lock_guard lock(mutex_);
      seen_.push_back(request.path);
    }
    if (request.has_header("Authorization")) ++leaked_;
    if (faults.expired > 0 && faults.expired-- > 0) return fail(response, 403, "", "expired");
    const std::string name = request.matches[1];
    const File* file = nullptr;
    for (const auto& [key, repository] : repositories_) {
      for (const auto& [path, candidate] : repository.files) {
        if (candidate.large && hash_of(candidate.bytes, true) == name) file = &candidate;
      }
    }
    if (file == nullptr) return fail(response, 404, "", "no such key");
    const std::string& bytes = file->sent.empty() ? file->bytes : file->sent;
    size_t first = 0, last = bytes.size();
    const std::string range = request.get_header_value("Range");
    if (!range.empty() && !faults.no_ranges) {
      first = std::stoul(range.substr(6));
      last = std::min(last, std::stoul(range.substr(range.find('-') + 1)) + 1);
      response.status = 206;
      response.set_header("Content-Range", fmt::format("bytes {}-{}/{}", first, last - 1, bytes.size()));
    } else {
      response.status = 200;
    }
    const_cast<Request&>(request).ranges.clear();  // the library would cut the body once more
    const bool cut = faults.cut > 0 && faults.cut-- > 0;
    const size_t all = last - first;
    const auto provide = [this, &bytes, first, all, cut](size_t offset, size_t, httplib::DataSink& sink) {
      if (cut && offset >= all / 2) return false;
      const size_t count = std::min<size_t>(faults.pause_us > 0 ? 1 << 16 : 1 << 20, all - offset);
      if (faults.pause_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(faults.pause_us.load()));
      store_bytes_ += count;
      return sink.write(bytes.data() + first + offset, count);
    };
    if (faults.endless_body) {
      response.set_chunked_content_provider("application/octet-stream", [](size_t, httplib::DataSink& sink) {
        static const std::string kBlock(1 << 16, 'x');
        return sink.write(kBlock.data(), kBlock.size());
      });
    } else {
      response.set_content_provider(all, "application/octet-stream", provide);
    }
  }

  const bool tls_;
  std::unique_ptr<httplib::Server> server_;
  std::thread thread_;
  int port_ = 0;
  std::map<std::string, Repository> repositories_;
  mutable std::mutex mutex_;
  std::vector<std::string> seen_;
  std::atomic<int> leaked_ = 0;
  std::atomic<uint64_t> store_bytes_ = 0;
};

/// The variables of the hub, for one test: this server, a cache, and no token, proxy or offline mode of the machine.
class HubEnvironment {
 public:
  HubEnvironment(const std::string& endpoint, const std::string& home) {
    for (const char* name :
         {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH",
          "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy",
          "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"}) {
      set(name, nullptr);
    }
    set("HF_ENDPOINT", endpoint.c_str());
    set("HF_HOME", home.c_str());
  }
  ~HubEnvironment() {
    for (const auto& [name, value] : before_) value ? setenv(name.c_str(), value->c_str(), 1) : unsetenv(name.c_str());
  }
  HubEnvironment(const HubEnvironment&) = delete;
  HubEnvironment& operator=(const HubEnvironment&) = delete;

  void set(const char* name, const char* value) {
    if (!before_.contains(name)) {
      const char* before = std::getenv(name);
      before_[name] = before == nullptr ? std::nullopt : std::optional<std::string>(before);
    }
    value == nullptr ? (void)unsetenv(name) : (void)setenv(name, value, 1);
  }

 private:
  std::map<std::string, std::optional<std::string>> before_;
};

}  // namespace hone::testing
