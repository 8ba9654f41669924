//! POSIX calls on a file system that is mounted in this process, without the kernel: the layer that
//! the language bindings share (`libnacre.so` for C, the Python package).
//!
//! [`Mount::start`] mounts with a client, a network and a runtime of its own. The functions of the
//! modules take a mount and a path, or an open file, and behave like the system calls of the same
//! name. They fail with a [`wire::Errno`].

pub mod attrs;
mod dirs;
pub mod files;
mod mount;
pub mod names;
mod options;

pub use dirs::Dir;
pub use files::{File, Open};
pub use mount::{Mount, MountError, block_on_until_interrupted};
pub use options::Options;
