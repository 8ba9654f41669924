//! Error numbers on the wire: Linux's numbers on x86. An [`Errno`] is normally positive; most
//! status fields have the negative number.

use std::fmt;
use std::io;

/// An error number, normally positive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($( $name:ident = $value:literal $text:literal, )*) => {
        impl Errno {
            $( #[doc = $text] pub const $name: Errno = Errno($value); )*
        }

        /// Name, value and text of each known error number.
        pub const ERRNOS: &[(&str, i32, &str)] = &[ $( (stringify!($name), $value, $text) ),* ];
    };
}

errnos! {
    EPERM = 1 "Operation not permitted",
    ENOENT = 2 "No such file or directory",
    ESRCH = 3 "No such process",
    EINTR = 4 "Interrupted system call",
    EIO = 5 "Input/output error",
    ENXIO = 6 "No such device or address",
    E2BIG = 7 "Argument list too long",
    ENOEXEC = 8 "Exec format error",
    EBADF = 9 "Bad file descriptor",
    ECHILD = 10 "No child processes",
    EAGAIN = 11 "Resource temporarily unavailable",
    ENOMEM = 12 "Cannot allocate memory",
    EACCES = 13 "Permission denied",
    EFAULT = 14 "Bad address",
    ENOTBLK = 15 "Block device required",
    EBUSY = 16 "Device or resource busy",
    EEXIST = 17 "File exists",
    EXDEV = 18 "Invalid cross-device link",
    ENODEV = 19 "No such device",
    ENOTDIR = 20 "Not a directory",
    EISDIR = 21 "Is a directory",
    EINVAL = 22 "Invalid argument",
    ENFILE = 23 "Too many open files in system",
    EMFILE = 24 "Too many open files",
    ENOTTY = 25 "Inappropriate ioctl for device",
    ETXTBSY = 26 "Text file busy",
    EFBIG = 27 "File too large",
    ENOSPC = 28 "No space left on device",
    ESPIPE = 29 "Illegal seek",
    EROFS = 30 "Read-only file system",
    EMLINK = 31 "Too many links",
    EPIPE = 32 "Broken pipe",
    EDOM = 33 "Numerical argument out of domain",
    ERANGE = 34 "Numerical result out of range",
    EDEADLK = 35 "Resource deadlock avoided",
    ENAMETOOLONG = 36 "File name too long",
    ENOLCK = 37 "No locks available",
    ENOSYS = 38 "Function not implemented",
    ENOTEMPTY = 39 "Directory not empty",
    ELOOP = 40 "Too many levels of symbolic links",
    ENOMSG = 42 "No message of desired type",
    EIDRM = 43 "Identifier removed",
    ECHRNG = 44 "Channel number out of range",
    EL2NSYNC = 45 "Level 2 not synchronized",
    EL3HLT = 46 "Level 3 halted",
    EL3RST = 47 "Level 3 reset",
    ELNRNG = 48 "Link number out of range",
    EUNATCH = 49 "Protocol driver not attached",
    ENOCSI = 50 "No CSI structure available",
    EL2HLT = 51 "Level 2 halted",
    EBADE = 52 "Invalid exchange",
    EBADR = 53 "Invalid request descriptor",
    EXFULL = 54 "Exchange full",
    ENOANO = 55 "No anode",
    EBADRQC = 56 "Invalid request code",
    EBADSLT = 57 "Invalid slot",
    EBFONT = 59 "Bad font file format",
    ENOSTR = 60 "Device not a stream",
    ENODATA = 61 "No data available",
    ETIME = 62 "Timer expired",
    ENOSR = 63 "Out of streams resources",
    ENONET = 64 "Machine is not on the network",
    ENOPKG = 65 "Package not installed",
    EREMOTE = 66 "Object is remote",
    ENOLINK = 67 "Link has been severed",
    EADV = 68 "Advertise error",
    ESRMNT = 69 "Srmount error",
    ECOMM = 70 "Communication error on send",
    EPROTO = 71 "Protocol error",
    EMULTIHOP = 72 "Multihop attempted",
    EDOTDOT = 73 "RFS specific error",
    EBADMSG = 74 "Bad message",
    EOVERFLOW = 75 "Value too large for defined data type",
    ENOTUNIQ = 76 "Name not unique on network",
    EBADFD = 77 "File descriptor in bad state",
    EREMCHG = 78 "Remote address changed",
    ELIBACC = 79 "Can not access a needed shared library",
    ELIBBAD = 80 "Accessing a corrupted shared library",
    ELIBSCN = 81 ".lib section in a.out corrupted",
    ELIBMAX = 82 "Attempting to link in too many shared libraries",
    ELIBEXEC = 83 "Cannot exec a shared library directly",
    EILSEQ = 84 "Invalid or incomplete multibyte or wide character",
    ERESTART = 85 "Interrupted system call should be restarted",
    ESTRPIPE = 86 "Streams pipe error",
    EUSERS = 87 "Too many users",
    ENOTSOCK = 88 "Socket operation on non-socket",
    EDESTADDRREQ = 89 "Destination address required",
    EMSGSIZE = 90 "Message too long",
    EPROTOTYPE = 91 "Protocol wrong type for socket",
    ENOPROTOOPT = 92 "Protocol not available",
    EPROTONOSUPPORT = 93 "Protocol not supported",
    ESOCKTNOSUPPORT = 94 "Socket type not supported",
    EOPNOTSUPP = 95 "Operation not supported",
    EPFNOSUPPORT = 96 "Protocol family not supported",
    EAFNOSUPPORT = 97 "Address family not supported by protocol",
    EADDRINUSE = 98 "Address already in use",
    EADDRNOTAVAIL = 99 "Cannot assign requested address",
    ENETDOWN = 100 "Network is down",
    ENETUNREACH = 101 "Network is unreachable",
    ENETRESET = 102 "Network dropped connection on reset",
    ECONNABORTED = 103 "Software caused connection abort",
    ECONNRESET = 104 "Connection reset by peer",
    ENOBUFS = 105 "No buffer space available",
    EISCONN = 106 "Transport endpoint is already connected",
    ENOTCONN = 107 "Transport endpoint is not connected",
    ESHUTDOWN = 108 "Cannot send after transport endpoint shutdown",
    ETOOMANYREFS = 109 "Too many references: cannot splice",
    ETIMEDOUT = 110 "Connection timed out",
    ECONNREFUSED = 111 "Connection refused",
    EHOSTDOWN = 112 "Host is down",
    EHOSTUNREACH = 113 "No route to host",
    EALREADY = 114 "Operation already in progress",
    EINPROGRESS = 115 "Operation now in progress",
    ESTALE = 116 "Stale file handle",
    EUCLEAN = 117 "Structure needs cleaning",
    ENOTNAM = 118 "Not a XENIX named type file",
    ENAVAIL = 119 "No XENIX semaphores available",
    EISNAM = 120 "Is a named type file",
    EREMOTEIO = 121 "Remote I/O error",
    EDQUOT = 122 "Disk quota exceeded",
    ENOMEDIUM = 123 "No medium found",
    EMEDIUMTYPE = 124 "Wrong medium type",
    ECANCELED = 125 "Operation canceled",
    ENOKEY = 126 "Required key not available",
    EKEYEXPIRED = 127 "Key has expired",
    EKEYREVOKED = 128 "Key has been revoked",
    EKEYREJECTED = 129 "Key was rejected by service",
    EOWNERDEAD = 130 "Owner died",
    ENOTRECOVERABLE = 131 "State not recoverable",
    ERESTARTSYS = 512 "Interrupted, to be restarted",
    ERESTARTNOINTR = 513 "Interrupted, to be restarted at once",
    ERESTARTNOHAND = 514 "Interrupted, restarted without a handler",
    ENOIOCTLCMD = 515 "No ioctl command",
    EBADHANDLE = 521 "Illegal file handle",
    ENOTSYNC = 522 "Update synchronization mismatch",
    EBADCOOKIE = 523 "Stale cookie",
    ENOTSUPP = 524 "Operation not supported",
    ETOOSMALL = 525 "Buffer or request too small",
    ESERVERFAULT = 526 "Untranslatable server error",
    EBADTYPE = 527 "Type not supported by server",
    EJUKEBOX = 528 "Request started, will take long",
    EIOCBQUEUED = 529 "Queued, completion will follow",
}

impl Errno {
    /// Linux's second name of `EAGAIN`.
    pub const EWOULDBLOCK: Errno = Errno::EAGAIN;
    /// Linux's second name of `EDEADLK`.
    pub const EDEADLOCK: Errno = Errno::EDEADLK;

    /// The error of a status; `None` if the status is not negative.
    pub fn from_status(status: i32) -> Option<Errno> {
        (status < 0).then(|| Errno(status.saturating_neg()))
    }

    /// The number for user programs. `EIO` replaces numbers from 512 on, which are internal to the
    /// kernel, and numbers below 1.
    pub const fn for_programs(self) -> Errno {
        if self.0 > 0 && self.0 < 512 {
            self
        } else {
            Errno::EIO
        }
    }

    /// The negative number for a status field.
    pub const fn status(self) -> i32 {
        -self.0
    }

    /// The name, such as `ENOENT`; `None` for an unknown number.
    pub fn name(self) -> Option<&'static str> {
        ERRNOS
            .iter()
            .find(|(_, value, _)| *value == self.0)
            .map(|(name, _, _)| *name)
    }

    /// The description; `unknown error` for an unknown number.
    pub fn text(self) -> &'static str {
        ERRNOS
            .iter()
            .find(|(_, value, _)| *value == self.0)
            .map_or("unknown error", |(_, _, text)| text)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.text()),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Errno({})", self.0),
        }
    }
}

impl std::error::Error for Errno {}

impl From<io::Error> for Errno {
    fn from(e: io::Error) -> Errno {
        Errno::from(&e)
    }
}

impl From<&io::Error> for Errno {
    fn from(e: &io::Error) -> Errno {
        if let Some(code) = e.raw_os_error() {
            return Errno(code);
        }
        match e.kind() {
            io::ErrorKind::NotFound => Errno::ENOENT,
            io::ErrorKind::PermissionDenied => Errno::EACCES,
            io::ErrorKind::AlreadyExists => Errno::EEXIST,
            io::ErrorKind::InvalidInput => Errno::EINVAL,
            io::ErrorKind::TimedOut => Errno::ETIMEDOUT,
            io::ErrorKind::Interrupted => Errno::EINTR,
            io::ErrorKind::StorageFull => Errno::ENOSPC,
            io::ErrorKind::OutOfMemory => Errno::ENOMEM,
            _ => Errno::EIO,
        }
    }
}

impl From<Errno> for io::Error {
    fn from(e: Errno) -> io::Error {
        io::Error::from_raw_os_error(e.0)
    }
}

/// `EPROTO`: malformed bytes of a peer are a protocol error.
impl From<crate::WireError> for Errno {
    fn from(_: crate::WireError) -> Errno {
        Errno::EPROTO
    }
}

#[cfg(test)]
mod tests {
    use super::Errno;

    #[test]
    fn an_errno_has_a_name_a_text_and_a_status() {
        assert_eq!(Errno::ENOENT.to_string(), "ENOENT (No such file or directory)");
        assert_eq!(Errno::ENOENT.status(), -2);
        assert_eq!(Errno::from_status(-2), Some(Errno::ENOENT));
        assert_eq!(Errno::from_status(0), None);
        assert_eq!(Errno(9999).to_string(), "errno 9999");
    }

    #[test]
    fn numbers_invalid_for_programs_become_eio() {
        assert_eq!(Errno::ENOENT.for_programs(), Errno::ENOENT);
        assert_eq!(Errno::ERESTARTSYS.for_programs(), Errno::EIO);
        assert_eq!(Errno(0).for_programs(), Errno::EIO);
    }
}
