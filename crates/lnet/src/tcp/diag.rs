//! What the kernel knows of a TCP socket of this network namespace: `sock_diag`.
//!
//! `TCP_INFO` would say some of it of this process's own sockets, but no safe wrapper of it exists.

use super::netlink::{Netlink, short_answer, word};
use std::io::{ErrorKind, Result};
use std::net::{Ipv4Addr, SocketAddrV4};

const AF_INET: u8 = 2;
const IPPROTO_TCP: u8 = 6;
const NETLINK_SOCK_DIAG: i32 = 4;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const TCP_ESTABLISHED: u8 = 1;
const TCP_LISTEN: u8 = 10;
/// `struct inet_diag_req_v2`: family, protocol, extensions, padding, states, and a socket's id.
const REQUEST: usize = 56;

/// A socket as the kernel sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Diagnosis {
    /// TCP's state, as the kernel numbers them.
    pub(super) state: u8,
    /// How often in a row the same bytes, or a probe, were sent to the peer's host without an acknowledgement.
    pub(super) retransmits: u8,
    /// Bytes that the peer's host has not acknowledged, those that were not yet sent included.
    pub(super) unacknowledged: u32,
    /// The user that made it, as this process sees that user.
    pub(super) uid: u32,
    /// The number of its inode; 0 when no process has it open any more.
    pub(super) inode: u32,
}

impl Diagnosis {
    /// Whether it is connected, and a process has it open. Of a socket that no process has, the kernel may say that it
    /// belongs to root.
    pub(super) fn is_connected(&self) -> bool {
        self.state == TCP_ESTABLISHED && self.inode != 0
    }
}

/// The way to ask.
#[derive(Debug)]
pub(super) struct Diag(Netlink);

impl Diag {
    /// # Errors
    /// The kernel has no such service (some sandboxes), or this process has no descriptor left.
    pub(super) fn open() -> Result<Diag> {
        Netlink::open(NETLINK_SOCK_DIAG).map(Diag)
    }

    /// The socket that is connected from `local` to `remote`; `None` if there is none.
    ///
    /// # Errors
    /// The kernel does not say.
    pub(super) fn ask(&mut self, local: SocketAddrV4, remote: SocketAddrV4) -> Result<Option<Diagnosis>> {
        // Where none is connected, the kernel gives the one that listens.
        Ok(self.find(local, remote)?.filter(|s| s.state != TCP_LISTEN))
    }

    /// The socket that listens at `at`; `None` if there is none.
    ///
    /// # Errors
    /// The kernel does not say.
    pub(super) fn listener(&mut self, at: SocketAddrV4) -> Result<Option<Diagnosis>> {
        let nobody = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
        Ok(self.find(at, nobody)?.filter(|s| s.state == TCP_LISTEN))
    }

    fn find(&mut self, local: SocketAddrV4, remote: SocketAddrV4) -> Result<Option<Diagnosis>> {
        match self.0.ask(SOCK_DIAG_BY_FAMILY, &request(local, remote)) {
            Ok(answer) => parse(&answer).map(Some),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }
}

fn request(local: SocketAddrV4, remote: SocketAddrV4) -> [u8; REQUEST] {
    let mut bytes = [0; REQUEST];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(0, &[AF_INET, IPPROTO_TCP]);
    // All states.
    put(4, &[0xff; 4]);
    put(8, &local.port().to_be_bytes());
    put(10, &remote.port().to_be_bytes());
    put(12, &local.ip().octets());
    put(28, &remote.ip().octets());
    // No cookie: whatever socket has these addresses.
    put(48, &[0xff; 8]);
    bytes
}

/// Reads a `struct inet_diag_msg`: family, state, timer, retransmissions, a socket's id, and five numbers.
fn parse(answer: &[u8]) -> Result<Diagnosis> {
    let byte = |at: usize| answer.get(at).copied().ok_or_else(short_answer);
    Ok(Diagnosis {
        state: byte(1)?,
        retransmits: byte(3)?,
        unacknowledged: word(answer, 60)?,
        uid: word(answer, 64)?,
        inode: word(answer, 68)?,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Diag, parse};
    use std::io::Write;
    use std::net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream};
    use std::os::unix::fs::MetadataExt;

    fn v4(addr: SocketAddr) -> SocketAddrV4 {
        match addr {
            SocketAddr::V4(addr) => addr,
            SocketAddr::V6(_) => unreachable!(),
        }
    }

    #[test]
    fn the_kernel_tells_what_is_not_acknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let [local, remote] = [client.local_addr(), client.peer_addr()].map(|addr| v4(addr.unwrap()));
        let mut diag = Diag::open().unwrap();
        let mut waits = |local, remote| {
            let found = diag.ask(local, remote).unwrap().unwrap();
            (found.retransmits, found.unacknowledged)
        };
        assert_eq!(waits(local, remote), (0, 0));
        client.set_nonblocking(true).unwrap();
        // The server reads nothing: what its buffers do not take stays here.
        while client.write(&[0; 1 << 16]).is_ok() {}
        assert!(waits(local, remote).1 > 0);
        assert_eq!(waits(remote, local), (0, 0), "the other end");
        drop(server);
        let nobody = SocketAddrV4::new(*local.ip(), 1);
        assert_eq!(diag.ask(nobody, remote).unwrap(), None);
    }

    #[test]
    fn the_owner_of_a_connected_socket_is_known_until_it_is_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = v4(listener.local_addr().unwrap());
        let client = TcpStream::connect(at).unwrap();
        let (_ours, from) = listener.accept().unwrap();
        let from = v4(from);
        let me = std::fs::metadata("/proc/self").unwrap().uid();
        let mut diag = Diag::open().unwrap();
        let found = diag.ask(from, at).unwrap().unwrap();
        assert!(found.is_connected() && found.uid == me, "{found:?}");
        assert_ne!(diag.ask(at, from).unwrap().unwrap().inode, found.inode);
        drop(client);
        let closed = diag.ask(from, at).unwrap();
        assert!(closed.is_none_or(|s| !s.is_connected()), "{closed:?}");
    }

    #[test]
    fn a_socket_that_listens_is_not_taken_for_a_connected_one() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = v4(listener.local_addr().unwrap());
        let elsewhere = SocketAddrV4::new(*at.ip(), 1);
        let mut diag = Diag::open().unwrap();
        assert_eq!(diag.ask(at, elsewhere).unwrap(), None);
        assert!(diag.listener(at).unwrap().is_some());
        drop(listener);
        assert_eq!(diag.listener(at).unwrap(), None);
    }

    #[test]
    fn a_short_answer_is_no_diagnosis() {
        assert!(parse(&[0; 72]).is_ok());
        assert!((0..72).all(|len| parse(&[0; 72][..len]).is_err()));
    }
}
