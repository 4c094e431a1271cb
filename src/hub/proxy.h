// The proxy for an address, from the variables that other programs read.
#pragma once

#include <optional>
#include <string>

#include "hub/url.h"

namespace hone {

struct Proxy {
  std::string host;
  int port = 0;
  std::string user, password;  ///< decoded; "" without
};

/// HTTPS_PROXY or HTTP_PROXY by the scheme, else ALL_PROXY, each also in lower case (which is read first); nothing if
/// NO_PROXY names the host, or a domain above it, or '*'. Throws UserError for a proxy that is no http:// address.
std::optional<Proxy> proxy_for(const Url& url);

}  // namespace hone
