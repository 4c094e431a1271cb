// Which certificate authorities to trust.
#pragma once

#include <string>

namespace hone {

struct Certificates {
  std::string file, folder;  ///< either may be ""
};

/// SSL_CERT_FILE and SSL_CERT_DIR, else the store of the distribution (Debian, Alpine, RHEL, SUSE). Throws UserError if
/// a variable names nothing, or if there is no store.
Certificates trusted_certificates();

}  // namespace hone
