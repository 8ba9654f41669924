//! The border to C, and all of this library's unsafe code.
//!
//! What C passes is wrapped in types of this module whose fields nobody else can see or make: a value of them comes from
//! C, as a parameter of a function of `nacre.h`, and nowhere else. That header asks C for what is relied on here: that a
//! pointer is NULL or good for the length of the call, for as many bytes as the header says. NULL where something must be
//! is `EFAULT`.

#![allow(
    unsafe_code,
    reason = "pointers from C become bytes and values here, and nowhere else"
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

    /// One that may be NULL.
    pub(crate) fn optional(&self) -> Option<&[u8]> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: it is from C and not NULL: a string that ends with a NUL and stays as it is until the call returns, and
        // so longer than `self`, which the call's function owns.
        Some(unsafe { CStr::from_ptr(self.0) }.to_bytes())
    }
}

/// `const T *`: a value to read.
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T: Plain> In<T> {
    pub(crate) fn get(&self) -> Result<T, Errno> {
        self.optional().ok_or(Errno::EFAULT)
    }

    /// One that may be NULL.
    pub(crate) fn optional(&self) -> Option<T> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: it is from C and not NULL: a `T` that C has filled in, of a type of which any bytes are a value.
        Some(unsafe { self.0.read_unaligned() })
    }
}

/// `T *`: room for a value.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T: Plain> Out<T> {
    /// What cannot be written need not be asked for.
    pub(crate) fn check(&self) -> Result<(), Errno> {
        if self.0.is_null() {
            return Err(Errno::EFAULT);
        }
        Ok(())
    }

    pub(crate) fn set(&self, value: T) -> Result<(), Errno> {
        self.check()?;
        // SAFETY: it is from C and not NULL: room for a `T` that is C's to give until the call returns.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }
}

/// `size_t`: how many bytes there are at the pointer beside it.
#[repr(transparent)]
pub(crate) struct Count(usize);

impl Count {
    /// As many, and no more than one slice can have.
    fn checked(&self) -> Result<usize, Errno> {
        match isize::try_from(self.0) {
            Ok(_) => Ok(self.0),
            Err(_) => Err(Errno::EINVAL),
        }
    }
}

/// `const void *`: bytes to read.
#[repr(transparent)]
pub(crate) struct Source(*const c_void);

impl Source {
    pub(crate) fn bytes(&self, count: &Count) -> Result<&[u8], Errno> {
        match count.checked()? {
            0 => Ok(&[]),
            _ if self.0.is_null() => Err(Errno::EFAULT),
            // SAFETY: it is from C and not NULL, and `count` from C too: so many bytes are there and stay as they are until
            // the call returns.
            len => Ok(unsafe { std::slice::from_raw_parts(self.0.cast(), len) }),
        }
    }
}

/// `void *`: room for bytes.
#[repr(transparent)]
pub(crate) struct Sink(*mut c_void);

impl Sink {
    /// The room, of which it is not known what is in it.
    pub(crate) fn room(&mut self, count: &Count) -> Result<&mut [MaybeUninit<u8>], Errno> {
        match count.checked()? {
            0 => Ok(&mut []),
            _ if self.0.is_null() => Err(Errno::EFAULT),
            // SAFETY: it is from C and not NULL, and `count` from C too: room for so many bytes that nobody else uses until
            // the call returns.
            len => Ok(unsafe { std::slice::from_raw_parts_mut(self.0.cast(), len) }),
        }
    }
}

/// A type of which any bytes are a value, zeros among them.
///
/// # Safety
/// It must be so: integers, arrays and structures of integers.
pub(crate) unsafe trait Plain: Copy {
    /// The value that is zeros.
    fn zeroed() -> Self {
        // SAFETY: any bytes are a value of the type.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }
}

// SAFETY: structures of integers.
unsafe impl Plain for libc::stat {}
// SAFETY: a structure of integers.
unsafe impl Plain for libc::statvfs {}
// SAFETY: an array of structures of integers.
unsafe impl Plain for [libc::timespec; 2] {}
// SAFETY: a structure of integers.
unsafe impl Plain for crate::dirs::DirEntry {}
// SAFETY: a structure of integers.
unsafe impl Plain for crate::stripes::Stripe {}

/// `struct nacre_fs *`: a mount by its number, which no memory is behind.
#[repr(transparent)]
pub(crate) struct Fs(*mut c_void);

impl Fs {
    pub(crate) fn of(number: usize) -> Fs {
        Fs(std::ptr::without_provenance_mut(number))
    }

    /// Its number; NULL has none.
    pub(crate) fn number(&self) -> Result<usize, Errno> {
        match self.0.addr() {
            0 => Err(Errno::EFAULT),
            number => Ok(number),
        }
    }
}

/// What a function returns.
pub(crate) trait Returned {
    /// What tells that it failed, and that errno says why.
    const FAILED: Self;
}

impl Returned for c_int {
    const FAILED: c_int = -1;
}

impl Returned for isize {
    const FAILED: isize = -1;
}

impl Returned for i64 {
    const FAILED: i64 = -1;
}

impl Returned for *const c_char {
    const FAILED: *const c_char = std::ptr::null();
}

impl Returned for Fs {
    const FAILED: Fs = Fs(std::ptr::null_mut());
}

/// Runs a call of C. What goes wrong becomes an errno; a panic, an `EIO` and a line on standard error.
pub(crate) fn guarded<T: Returned>(name: &str, call: impl FnOnce() -> Result<T, Errno>) -> T {
    let why = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => return value,
        Ok(Err(why)) => why,
        Err(_) => {
            let said = "an error of the library itself, reported above; the call fails with EIO";
            // Nobody may be there to read it.
            let _ = writeln!(std::io::stderr(), "libnacre: {name}: {said}");
            Errno::EIO
        }
    };
    errno::set_errno(errno::Errno(why.for_programs().0));
    T::FAILED
}

/// Functions that C calls. A body is that of a function that returns a `Result`; parameters are of this module's types
/// or numbers.
macro_rules! c_functions {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $of:ty),* $(,)?) -> $returned:ty $body:block)*) => {$(
        $(#[$doc])*
        // SAFETY: the names that begin with `nacre_` are this library's, and each stands once in `exports`.
        #[unsafe(no_mangle)]
        #[allow(unsafe_code, reason = "only the attribute is")]
        pub(crate) extern "C" fn $name($($arg: $of),*) -> $returned {
            $crate::border::guarded(stringify!($name), move || -> Result<$returned, wire::Errno> { $body })
        }
    )*};
}
pub(crate) use c_functions;
