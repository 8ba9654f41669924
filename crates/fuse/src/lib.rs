//! A mount for the kernel: FUSE over the client library.
