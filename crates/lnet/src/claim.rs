//! A process claims each address of this machine that it uses. Two processes with the same port
//! must not share an address: NIDs have no port, so peers would take both processes for one node.
//!
//! A listening socket would be a sufficient claim, but a client that may not listen (port 988 needs
//! root) has none. So each process also holds a Unix socket in the abstract name space. This socket
//! belongs to the network namespace, as addresses do. It disappears with its process, and the
//! kernel tells which process holds it.

use crate::servers_user::servers_user;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use socket2::{Domain, SockAddr, Socket, Type};
use std::fmt;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixListener as StdListener;
use std::time::Duration;
use tokio::net::UnixListener;

/// Maximum number of queries for the holder (connections) that the kernel queues.
const BACKLOG: i32 = 128;
/// Pause between accepting two queries: a process that floods this one with queries must not keep
/// it busy.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// Processes without privileges may listen on ports from this one on.
pub(crate) const UNPRIVILEGED_PORT_MIN: u16 = 1024;
/// Maximum number of characters of a command line that are displayed.
const COMMAND_LINE_MAX: usize = 200;

/// A process that has claimed an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressUser {
    /// The process id; 0 if the process is in another PID namespace.
    pub pid: u32,
    /// The effective user id.
    pub uid: u32,
}

impl fmt::Display for AddressUser {
    /// The process, its user, and its command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} of user {}", self.pid, self.uid)?;
        let line = std::fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let command: String = line
            .trim()
            .chars()
            .filter(|c| !c.is_control())
            .take(COMMAND_LINE_MAX)
            .collect();
        match command.is_empty() {
            true => Ok(()),
            false => write!(f, " ({command})"),
        }
    }
}

fn socket_name(addr: Ipv4Addr, port: u16) -> io::Result<SockAddr> {
    SockAddr::unix(format!("\0nacre/lnet/{addr}:{port}"))
}

/// The process that has claimed the address for this port; `None` if there is none, or the query
/// fails.
pub fn user_of(addr: Ipv4Addr, port: u16) -> Option<AddressUser> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).ok()?;
    socket.set_nonblocking(true).ok()?;
    socket.connect(&socket_name(addr, port).ok()?).ok()?;
    let holder = getsockopt(&socket, PeerCredentials).ok()?;
    Some(AddressUser {
        pid: u32::try_from(holder.pid()).unwrap_or(0),
        uid: holder.uid(),
    })
}

/// Whether the claim of `user` excludes another process from the address; `listens` tells whether
/// the other process listens on `port`. A claim excludes a listener on a reserved port only if root
/// or the servers' user ([`servers_user`]) holds it: otherwise any local user could block a server
/// by claiming its address.
pub(crate) fn excludes(user: AddressUser, port: u16, listens: bool) -> bool {
    let may_listen = || user.uid == 0 || servers_user() == Some(user.uid);
    !listens || port >= UNPRIVILEGED_PORT_MIN || may_listen()
}

/// Claims the address for this port until the returned socket is dropped. `Ok(None)`: no process
/// has claimed the address, but claiming it failed; the reason is logged. `Err`: the process that
/// has claimed the address, `None` if it is unknown.
pub(crate) fn take(addr: Ipv4Addr, port: u16) -> Result<Option<StdListener>, Option<AddressUser>> {
    let bind = || {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.bind(&socket_name(addr, port)?)?;
        socket.listen(BACKLOG)?;
        Ok(StdListener::from(socket))
    };
    match bind() {
        Ok(listener) => Ok(Some(listener)),
        Err(e) if ErrorKind::AddrInUse == io::Error::kind(&e) => Err(user_of(addr, port)),
        Err(e) => {
            tracing::warn!("cannot claim {addr}, so a second process may use it too: {e}");
            Ok(None)
        }
    }
}

/// Holds a claim until `closed` resolves. Accepts the queries for the holder only to keep the
/// kernel's queue from filling; the kernel itself answers them.
pub(crate) async fn hold(claim: StdListener, closed: impl Future<Output = ()>) {
    let listener = UnixListener::from_std(claim);
    let accepting = async {
        if let Ok(listener) = &listener {
            loop {
                let _ = listener.accept().await;
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
        std::future::pending().await
    };
    tokio::select! {
        biased;
        () = closed => {}
        () = accepting => {}
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{AddressUser, excludes, take, user_of};
    use std::net::Ipv4Addr;

    #[test]
    fn a_claimed_address_is_refused_and_its_user_reported() {
        let (addr, port) = (Ipv4Addr::new(127, 31, 0, 1), 17995);
        assert_eq!(user_of(addr, port), None);
        let held = take(addr, port).unwrap().unwrap();
        let user = take(addr, port).unwrap_err().unwrap();
        assert_eq!(user.pid, std::process::id());
        assert!(user.to_string().contains(&format!("process {}", user.pid)));
        assert!(
            take(addr, port + 1).is_ok(),
            "the same address with another port is another node"
        );
        drop(held);
        assert!(take(addr, port).is_ok());
    }

    #[test]
    fn claims_of_unprivileged_users_do_not_exclude_listeners_on_reserved_ports() {
        let user = AddressUser { pid: 1, uid: 1000 };
        assert!(!excludes(user, 988, true));
        assert!(excludes(user, 988, false) && excludes(user, 7988, true));
        assert!(excludes(AddressUser { uid: 0, ..user }, 988, true));
    }
}
