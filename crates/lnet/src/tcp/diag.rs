//! What the kernel knows of a TCP socket of this network namespace: one question to `sock_diag` (netlink), answered at once.
//!
//! `TCP_INFO` would say the same of this process's own sockets, but no safe wrapper of it exists.

use socket2::{Domain, Protocol, Socket, Type};
use std::io::{Error, ErrorKind, Read, Result};
use std::net::SocketAddrV4;

const AF_INET: u8 = 2;
const AF_NETLINK: i32 = 16;
const IPPROTO_TCP: u8 = 6;
const NETLINK_SOCK_DIAG: i32 = 4;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `struct nlmsghdr`: length, type, flags, sequence number, port.
const HEADER: usize = 16;
/// `struct inet_diag_req_v2`: family, protocol, extensions, padding, states, and a socket's id.
const REQUEST: usize = HEADER + 56;
/// `struct inet_diag_msg`: family, state, timer, retransmissions, a socket's id, and five numbers.
const ANSWER: usize = HEADER + 72;

/// A socket as the kernel sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Diagnosis {
    /// How often in a row the same bytes, or a probe, were sent to the peer's host without an acknowledgement.
    pub(super) retransmits: u8,
    /// Bytes that the peer's host has not acknowledged, those that were not yet sent included.
    pub(super) unacknowledged: u32,
}

/// The way to ask.
#[derive(Debug)]
pub(super) struct Diag {
    netlink: Socket,
    sequence: u32,
}

impl Diag {
    /// Fails where the kernel has no such service (some sandboxes).
    pub(super) fn open() -> Result<Diag> {
        let protocol = Some(Protocol::from(NETLINK_SOCK_DIAG));
        let netlink = Socket::new(Domain::from(AF_NETLINK), Type::DGRAM, protocol)?;
        netlink.set_nonblocking(true)?;
        Ok(Diag { netlink, sequence: 0 })
    }

    /// The socket that is connected from `local` to `remote`; `None` if there is none.
    pub(super) fn ask(&mut self, local: SocketAddrV4, remote: SocketAddrV4) -> Result<Option<Diagnosis>> {
        self.sequence = self.sequence.wrapping_add(1);
        self.netlink.send(&request(self.sequence, local, remote))?;
        let mut answer = [0; 1024];
        loop {
            // The kernel answers while it takes the question.
            let len = (&self.netlink).read(&mut answer)?;
            if let Some(found) = parse(&answer[..len], self.sequence)? {
                return Ok(found);
            }
        }
    }
}

fn request(sequence: u32, local: SocketAddrV4, remote: SocketAddrV4) -> [u8; REQUEST] {
    let mut bytes = [0; REQUEST];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(0, &(REQUEST as u32).to_ne_bytes());
    put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(6, &NLM_F_REQUEST.to_ne_bytes());
    put(8, &sequence.to_ne_bytes());
    put(HEADER, &[AF_INET, IPPROTO_TCP]);
    // All states.
    put(HEADER + 4, &[0xff; 4]);
    put(HEADER + 8, &local.port().to_be_bytes());
    put(HEADER + 10, &remote.port().to_be_bytes());
    put(HEADER + 12, &local.ip().octets());
    put(HEADER + 28, &remote.ip().octets());
    // No cookie: whatever socket has these addresses.
    put(HEADER + 48, &[0xff; 8]);
    bytes
}

/// `None`: the answer to an earlier question.
fn parse(bytes: &[u8], sequence: u32) -> Result<Option<Option<Diagnosis>>> {
    let word = |at: usize| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let short = || Error::new(ErrorKind::InvalidData, "sock_diag gave a short answer");
    let kind = u16::from_ne_bytes(*bytes.get(4..).and_then(<[u8]>::first_chunk).ok_or_else(short)?);
    if word(8).ok_or_else(short)? != sequence {
        return Ok(None);
    }
    if kind == NLMSG_ERROR {
        let error = Error::from_raw_os_error((word(HEADER).ok_or_else(short)? as i32).wrapping_neg());
        return match error.kind() {
            ErrorKind::NotFound => Ok(Some(None)),
            _ => Err(error),
        };
    }
    if bytes.len() < ANSWER {
        return Err(short());
    }
    let unacknowledged = word(HEADER + 60).ok_or_else(short)?;
    Ok(Some(Some(Diagnosis {
        retransmits: bytes[HEADER + 3],
        unacknowledged,
    })))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Diag, Diagnosis, NLMSG_ERROR, parse};
    use std::io::Write;
    use std::net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream};

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
        let idle = Diagnosis {
            retransmits: 0,
            unacknowledged: 0,
        };
        assert_eq!(diag.ask(local, remote).unwrap(), Some(idle));
        client.set_nonblocking(true).unwrap();
        // The server reads nothing: what its buffers do not take stays here.
        while client.write(&[0; 1 << 16]).is_ok() {}
        assert!(diag.ask(local, remote).unwrap().unwrap().unacknowledged > 0);
        assert_eq!(diag.ask(remote, local).unwrap(), Some(idle), "the other end");
        drop(server);
        let nobody = SocketAddrV4::new(*local.ip(), 1);
        assert_eq!(diag.ask(nobody, remote).unwrap(), None);
    }

    #[test]
    fn short_and_foreign_answers_are_no_diagnosis() {
        let mut error = [0; 36];
        error[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        error[8] = 7;
        error[16..20].copy_from_slice(&(-1_i32).to_ne_bytes());
        assert!(parse(&error, 6).unwrap().is_none());
        assert_eq!(parse(&error, 7).unwrap_err().raw_os_error(), Some(1));
        for len in 0..20 {
            assert!(parse(&error[..len], 7).is_err(), "{len}");
        }
        error[4] = 20;
        assert!(parse(&error, 7).is_err());
    }
}
