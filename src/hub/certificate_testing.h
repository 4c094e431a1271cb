// For tests: a certificate of this machine that signs itself.
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <string>

namespace hone::testing {

/// Writes NAME.pem and NAME.key into a folder: for `names`, such as "DNS:localhost,IP:127.0.0.1".
struct TestCertificate {
  TestCertificate(const std::string& folder, const std::string& name, const std::string& names)
      : file(folder + "/" + name + ".pem"), key(folder + "/" + name + ".key") {
    EVP_PKEY* pair = EVP_RSA_gen(2048);
    X509* certificate = X509_new();
    X509_set_version(certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, pair);
    X509_NAME* subject = X509_get_subject_name(certificate);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("test"), -1, -1, 0);
    X509_set_issuer_name(certificate, subject);
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, certificate, certificate, nullptr, nullptr, 0);
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, NID_subject_alt_name, names.c_str());
    X509_add_ext(certificate, extension, -1);
    X509_sign(certificate, pair, EVP_sha256());
    FILE* out = std::fopen(file.c_str(), "w");
    PEM_write_X509(out, certificate);
    std::fclose(out);
    out = std::fopen(key.c_str(), "w");
    PEM_write_PrivateKey(out, pair, nullptr, nullptr, 0, nullptr, nullptr);
    std::fclose(out);
    X509_EXTENSION_free(extension);
    X509_free(certificate);
    EVP_PKEY_free(pair);
  }

  std::string file, key;
};

}  // namespace hone::testing
