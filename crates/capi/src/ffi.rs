//! The interface to C, with all unsafe code of this library.
//!
//! Types of this module wrap the parameters that C passes. Their fields are private, so a pointer
//! that this module dereferences can only come from C, as a parameter of a function of `nacre.h`.
//! This module relies on a contract: a pointer from C is NULL, or points to what its type says (a
//! NUL-terminated string, a `T`, a buffer of `Count` bytes). That memory stays valid during the
//! call. Meanwhile nothing else changes inputs, and nothing else uses outputs. If a pointer must
//! not be NULL but is, the call fails with `EFAULT`.

#![allow(
    unsafe_code,
    reason = "converts pointers from C to slices and values; no other module does"
)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::Write;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use wire::Errno;

/// `const char *`: a string.
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    pub(crate) fn bytes(&self) -> Result<&[u8], Errno> {
        self.optional().ok_or(Errno::EFAULT)
    }

    /// The bytes without the NUL; `None` for a NULL pointer.
    pub(crate) fn optional(&self) -> Option<&[u8]> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: the pointer is from C and not NULL. It points to a NUL-terminated string that
        // stays valid and unchanged until the call returns, and thus outlives `self`, which the
        // called function owns.
        Some(unsafe { CStr::from_ptr(self.0) }.to_bytes())
    }
}

/// `const T *`: an input value.
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T: Pod> In<T> {
    pub(crate) fn get(&self) -> Result<T, Errno> {
        self.optional().ok_or(Errno::EFAULT)
    }

    /// The value; `None` for a NULL pointer.
    pub(crate) fn optional(&self) -> Option<T> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: the pointer is from C and not NULL. It points to an initialised `T`, and any
        // bytes are a valid `T`.
        Some(unsafe { self.0.read_unaligned() })
    }
}

/// `T *`: an output value.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T: Pod> Out<T> {
    /// Fails with `EFAULT` for NULL. Functions call it before they send a request.
    pub(crate) fn check(&self) -> Result<(), Errno> {
        if self.0.is_null() {
            return Err(Errno::EFAULT);
        }
        Ok(())
    }

    pub(crate) fn set(&self, value: T) -> Result<(), Errno> {
        self.check()?;
        // SAFETY: the pointer is from C and not NULL. It points to writable memory for a `T` until
        // the call returns.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }
}

/// `size_t`: the length of the buffer in the parameter before it.
#[repr(transparent)]
pub(crate) struct Count(usize);

impl Count {
    /// The length; `EINVAL`: it exceeds the largest length of a slice.
    fn checked(&self) -> Result<usize, Errno> {
        match isize::try_from(self.0) {
            Ok(_) => Ok(self.0),
            Err(_) => Err(Errno::EINVAL),
        }
    }
}

/// `const void *`: an input buffer.
#[repr(transparent)]
pub(crate) struct Source(*const c_void);

impl Source {
    pub(crate) fn bytes(&self, count: &Count) -> Result<&[u8], Errno> {
        match count.checked()? {
            0 => Ok(&[]),
            _ if self.0.is_null() => Err(Errno::EFAULT),
            // SAFETY: pointer and length are from C, and the pointer is not NULL. That many bytes
            // are readable and stay unchanged until the call returns.
            len => Ok(unsafe { std::slice::from_raw_parts(self.0.cast(), len) }),
        }
    }
}

/// `void *`: an output buffer.
#[repr(transparent)]
pub(crate) struct Sink(*mut c_void);

impl Sink {
    /// The buffer. Its content is uninitialised.
    pub(crate) fn buffer(&mut self, count: &Count) -> Result<&mut [MaybeUninit<u8>], Errno> {
        match count.checked()? {
            0 => Ok(&mut []),
            _ if self.0.is_null() => Err(Errno::EFAULT),
            // SAFETY: pointer and length are from C, and the pointer is not NULL. That many bytes
            // are writable, and nothing else uses them until the call returns.
            len => Ok(unsafe { std::slice::from_raw_parts_mut(self.0.cast(), len) }),
        }
    }
}

/// A type for which any bytes, including zeros, are a valid value.
///
/// # Safety
/// The type consists only of integers, arrays and structures of integers.
pub(crate) unsafe trait Pod: Copy {
    /// The value of all zeros.
    fn zeroed() -> Self {
        // SAFETY: any bytes are a value of the type.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }
}

// SAFETY: a structure of integers.
unsafe impl Pod for libc::stat {}
// SAFETY: a structure of integers.
unsafe impl Pod for libc::statvfs {}
// SAFETY: an array of structures of integers.
unsafe impl Pod for [libc::timespec; 2] {}
// SAFETY: a structure of integers.
unsafe impl Pod for crate::dirs::DirEntry {}
// SAFETY: a structure of integers.
unsafe impl Pod for crate::stripes::Stripe {}

/// `struct nacre_fs *`: the number of a mount. It never points to memory.
#[repr(transparent)]
pub(crate) struct Fs(*mut c_void);

impl Fs {
    pub(crate) fn of(number: usize) -> Fs {
        Fs(std::ptr::without_provenance_mut(number))
    }

    /// The mount's number; `EFAULT` for NULL.
    pub(crate) fn number(&self) -> Result<usize, Errno> {
        match self.0.addr() {
            0 => Err(Errno::EFAULT),
            number => Ok(number),
        }
    }
}

/// The return type of a C function.
pub(crate) trait ReturnValue {
    /// The value that reports a failure; errno has the reason.
    const FAILED: Self;
}

impl ReturnValue for c_int {
    const FAILED: c_int = -1;
}

impl ReturnValue for isize {
    const FAILED: isize = -1;
}

impl ReturnValue for i64 {
    const FAILED: i64 = -1;
}

impl ReturnValue for *const c_char {
    const FAILED: *const c_char = std::ptr::null();
}

impl ReturnValue for Fs {
    const FAILED: Fs = Fs(std::ptr::null_mut());
}

/// Runs the body of a C function. Sets errno on an error; a panic becomes `EIO` and a line on
/// standard error.
pub(crate) fn call<T: ReturnValue>(name: &str, body: impl FnOnce() -> Result<T, Errno>) -> T {
    let e = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return value,
        Ok(Err(e)) => e,
        Err(_) => {
            let message = "internal error (a bug; see the panic message above); the call fails with EIO";
            // Standard error may be closed.
            let _ = writeln!(std::io::stderr(), "libnacre: {name}: {message}");
            Errno::EIO
        }
    };
    nix::errno::Errno::set_raw(e.for_programs().0);
    T::FAILED
}

/// Defines functions that C calls. Each body returns a `Result`, from which [`call`] makes the
/// value for C. Parameters have numeric types or types of this module.
macro_rules! c_functions {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $of:ty),* $(,)?) -> $returned:ty $body:block)*) => {$(
        $(#[$doc])*
        // SAFETY: names that begin with `nacre_` belong to this library, and each is defined once,
        // in `exports`.
        #[unsafe(no_mangle)]
        #[allow(unsafe_code, reason = "only the attribute is unsafe")]
        pub(crate) extern "C" fn $name($($arg: $of),*) -> $returned {
            $crate::ffi::call(stringify!($name), move || -> Result<$returned, wire::Errno> { $body })
        }
    )*};
}
pub(crate) use c_functions;
