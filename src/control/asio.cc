// Asio, compiled once for all targets that link gcr_asio (ASIO_SEPARATE_COMPILATION).
#include <asio/impl/src.hpp>
#include <asio/ssl/impl/src.hpp>
