//! The kernel's information on a TCP socket of this network namespace: `sock_diag`.
//!
//! The socket option `TCP_INFO` has a part of this information for this process's own sockets, but
//! no safe wrapper.

use super::netlink::{Netlink, short_answer, word};
use std::io::{ErrorKind, Result};
use std::net::{Ipv4Addr, SocketAddrV4};

const AF_INET: u8 = 2;
const IPPROTO_TCP: u8 = 6;
const NETLINK_SOCK_DIAG: i32 = 4;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const TCP_ESTABLISHED: u8 = 1;
const TCP_LISTEN: u8 = 10;
/// Size in bytes of `struct inet_diag_req_v2`: family, protocol, extensions, padding, states, and a
/// socket's id.
const REQUEST_SIZE: usize = 56;

/// The kernel's state of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Diagnosis {
    /// The TCP state, in the kernel's numbering.
    pub(super) state: u8,
    /// Consecutive retransmissions or probes that the peer's host has not acknowledged.
    pub(super) retransmits: u8,
    /// Bytes that the peer's host has not acknowledged, including unsent ones.
    pub(super) unacknowledged: u32,
    /// The user that created the socket, in this process's user namespace.
    pub(super) uid: u32,
    /// The socket's inode number; 0 if no process has it open.
    pub(super) inode: u32,
}

impl Diagnosis {
    /// Whether the socket is connected and a process has it open. For a socket without a process,
    /// the kernel may report root as the owner.
    pub(super) fn is_connected(&self) -> bool {
        self.state == TCP_ESTABLISHED && self.inode != 0
    }
}

/// A netlink socket for `sock_diag`.
#[derive(Debug)]
pub(super) struct Diag(Netlink);

impl Diag {
    /// Opens the socket.
    ///
    /// # Errors
    /// The kernel lacks this service (some sandboxes), or this process has no free descriptor.
    pub(super) fn open() -> Result<Diag> {
        Netlink::open(NETLINK_SOCK_DIAG).map(Diag)
    }

    /// The socket with these two ends, in any state except listening; `None` if there is none.
    ///
    /// # Errors
    /// The kernel reports an error.
    pub(super) fn find_connection(
        &mut self,
        local: SocketAddrV4,
        remote: SocketAddrV4,
    ) -> Result<Option<Diagnosis>> {
        // If no socket is connected, the kernel returns the listening one.
        Ok(self.find(local, remote)?.filter(|s| s.state != TCP_LISTEN))
    }

    /// The socket listening on `addr`; `None` if there is none.
    ///
    /// # Errors
    /// The kernel reports an error.
    pub(super) fn find_listener(&mut self, addr: SocketAddrV4) -> Result<Option<Diagnosis>> {
        let no_peer = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
        Ok(self.find(addr, no_peer)?.filter(|s| s.state == TCP_LISTEN))
    }

    fn find(&mut self, local: SocketAddrV4, remote: SocketAddrV4) -> Result<Option<Diagnosis>> {
        match self.0.query(SOCK_DIAG_BY_FAMILY, &request(local, remote)) {
            Ok(answer) => parse(&answer).map(Some),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }
}

fn request(local: SocketAddrV4, remote: SocketAddrV4) -> [u8; REQUEST_SIZE] {
    let mut bytes = [0; REQUEST_SIZE];
    let mut put = |offset: usize, field: &[u8]| bytes[offset..offset + field.len()].copy_from_slice(field);
    put(0, &[AF_INET, IPPROTO_TCP]);
    // All states.
    put(4, &[0xff; 4]);
    put(8, &local.port().to_be_bytes());
    put(10, &remote.port().to_be_bytes());
    put(12, &local.ip().octets());
    put(28, &remote.ip().octets());
    // No cookie: any socket with these addresses.
    put(48, &[0xff; 8]);
    bytes
}

/// Parses a `struct inet_diag_msg`: family, state, timer, retransmissions, a socket's id, expiry
/// time, receive queue, send queue, user and inode.
fn parse(answer: &[u8]) -> Result<Diagnosis> {
    let byte = |offset: usize| answer.get(offset).copied().ok_or_else(short_answer);
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
    fn unacknowledged_bytes_are_reported() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let [local, remote] = [client.local_addr(), client.peer_addr()].map(|addr| v4(addr.unwrap()));
        let mut diag = Diag::open().unwrap();
        let mut unacked = |local, remote| {
            let found = diag.find_connection(local, remote).unwrap().unwrap();
            (found.retransmits, found.unacknowledged)
        };
        assert_eq!(unacked(local, remote), (0, 0));
        client.set_nonblocking(true).unwrap();
        // The server reads nothing: bytes beyond its buffers stay in the client's socket.
        while client.write(&[0; 1 << 16]).is_ok() {}
        assert!(unacked(local, remote).1 > 0);
        assert_eq!(unacked(remote, local), (0, 0), "the other end");
        drop(server);
        let unused = SocketAddrV4::new(*local.ip(), 1);
        assert_eq!(diag.find_connection(unused, remote).unwrap(), None);
    }

    #[test]
    fn the_owner_of_a_socket_is_reported_until_it_is_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server_addr = v4(listener.local_addr().unwrap());
        let client = TcpStream::connect(server_addr).unwrap();
        let (_server, client_addr) = listener.accept().unwrap();
        let client_addr = v4(client_addr);
        let own_uid = std::fs::metadata("/proc/self").unwrap().uid();
        let mut diag = Diag::open().unwrap();
        let found = diag.find_connection(client_addr, server_addr).unwrap().unwrap();
        assert!(found.is_connected() && found.uid == own_uid, "{found:?}");
        let other_end = diag.find_connection(server_addr, client_addr).unwrap().unwrap();
        assert_ne!(other_end.inode, found.inode);
        drop(client);
        let closed = diag.find_connection(client_addr, server_addr).unwrap();
        assert!(closed.is_none_or(|s| !s.is_connected()), "{closed:?}");
    }

    #[test]
    fn a_listening_socket_is_not_reported_as_connected() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = v4(listener.local_addr().unwrap());
        let unused = SocketAddrV4::new(*addr.ip(), 1);
        let mut diag = Diag::open().unwrap();
        assert_eq!(diag.find_connection(addr, unused).unwrap(), None);
        assert!(diag.find_listener(addr).unwrap().is_some());
        drop(listener);
        assert_eq!(diag.find_listener(addr).unwrap(), None);
    }

    #[test]
    fn a_short_answer_is_an_error() {
        assert!(parse(&[0; 72]).is_ok());
        assert!((0..72).all(|len| parse(&[0; 72][..len]).is_err()));
    }
}
