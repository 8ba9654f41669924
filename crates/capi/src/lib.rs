//! `libnacre.so`: file system access for C programs without a kernel mount. `include/nacre.h`
//! documents its functions; [`exports`] defines them.
//!
//! A call enters through [`ffi`], which converts C's parameters, and turns errors into errno
//! values. The crate [`posix`] does the work, on the caller's thread; the mount's runtime has
//! threads for network and caches. C refers to mounts and open files by numbers, not addresses
//! ([`mount`], [`table`]). So the number of a closed file cannot crash the program.

mod attrs;
mod dirs;
mod exports;
mod ffi;
mod mount;
mod stripes;
mod table;
