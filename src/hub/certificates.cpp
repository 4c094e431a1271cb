#include "hub/certificates.h"

#include <array>
#include <cstdlib>
#include <filesystem>

#include "core/base/error.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

/// A program that is linked statically carries the paths of the machine that built it, so they are stated here.
constexpr std::array<const char*, 6> kBundles = {"/etc/ssl/certs/ca-certificates.crt",  // Debian, Ubuntu, Alpine, Arch
                                                 "/etc/pki/tls/certs/ca-bundle.crt",    // RHEL, Rocky, Fedora
                                                 "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  // RHEL
                                                 "/etc/ssl/ca-bundle.pem",                             // SUSE
                                                 "/etc/ssl/cert.pem",                                  // Alpine
                                                 "/etc/pki/tls/cacert.pem"};
constexpr std::array<const char*, 2> kFolders = {"/etc/ssl/certs", "/etc/pki/tls/certs"};

std::string stated(const char* name, bool folder) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return "";
  std::error_code error;
  if (folder ? fs::is_directory(value, error) : fs::is_regular_file(value, error)) return value;
  throw UserError(std::string(name) + (folder ? " names no folder" : " names no file"), value,
                  folder ? "name a folder of hashed certificates, or leave it out"
                         : "name a file with certificates (PEM), or leave it out");
}

bool has_certificates(const char* folder) {
  std::error_code error;
  return fs::is_directory(folder, error) && fs::directory_iterator(folder, error) != fs::directory_iterator();
}

}  // namespace

Certificates trusted_certificates() {
  Certificates found{stated("SSL_CERT_FILE", false), stated("SSL_CERT_DIR", true)};
  if (!found.file.empty() || !found.folder.empty()) return found;
  std::error_code error;
  for (const char* bundle : kBundles) {
    if (fs::is_regular_file(bundle, error)) return {bundle, ""};
  }
  for (const char* folder : kFolders) {
    if (has_certificates(folder)) return {"", folder};
  }
  throw UserError("this machine has no certificates of authorities, so no server can be trusted", "SSL_CERT_FILE",
                  "install the package ca-certificates, or set SSL_CERT_FILE to a file of certificates (PEM)");
}

}  // namespace hone
