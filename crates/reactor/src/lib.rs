//! Windlass: a Linux event reactor.
