//! Queries to the kernel over netlink, each answered at once by one message.

use socket2::{Domain, Protocol, Socket, Type};
use std::io::{Error, ErrorKind, Read, Result};

const AF_NETLINK: i32 = 16;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
/// Size in bytes of `struct nlmsghdr`: length, type, flags, sequence number, port.
const HEADER: usize = 16;

/// A netlink socket.
#[derive(Debug)]
pub(super) struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    /// Opens a socket for this netlink protocol.
    ///
    /// # Errors
    /// The kernel lacks this service (some sandboxes), or this process has no free descriptor.
    pub(super) fn open(protocol: i32) -> Result<Netlink> {
        let socket = Socket::new(
            Domain::from(AF_NETLINK),
            Type::DGRAM,
            Some(Protocol::from(protocol)),
        )?;
        socket.set_nonblocking(true)?;
        Ok(Netlink { socket, sequence: 0 })
    }

    /// Sends a query of type `kind`; returns the body of the answer.
    ///
    /// # Errors
    /// The kernel reports an error, or its answer is malformed.
    pub(super) fn query(&mut self, kind: u16, question: &[u8]) -> Result<Vec<u8>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = Vec::with_capacity(HEADER + question.len());
        message.extend(((HEADER + question.len()) as u32).to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(NLM_F_REQUEST.to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend([0; 4]);
        message.extend(question);
        self.socket.send(&message)?;
        let mut answer = [0; 2048];
        loop {
            // The read finds the answer at once: the kernel answers during the send.
            let len = (&self.socket).read(&mut answer)?;
            if let Some(found) = parse(&answer[..len], self.sequence)? {
                return Ok(found.to_vec());
            }
        }
    }
}

/// Parses an answer; `None` if it belongs to an earlier query.
fn parse(bytes: &[u8], sequence: u32) -> Result<Option<&[u8]>> {
    let kind = bytes.get(4..).and_then(<[u8]>::first_chunk);
    let kind = u16::from_ne_bytes(*kind.ok_or_else(short_answer)?);
    if word(bytes, 8)? != sequence {
        return Ok(None);
    }
    let body = bytes.get(HEADER..).ok_or_else(short_answer)?;
    if kind == NLMSG_ERROR {
        let errno = (word(body, 0)? as i32).wrapping_neg();
        return Err(Error::from_raw_os_error(errno));
    }
    Ok(Some(body))
}

/// The 32-bit number at this offset of an answer.
///
/// # Errors
/// The answer is too short.
pub(super) fn word(answer: &[u8], offset: usize) -> Result<u32> {
    let bytes = answer.get(offset..).and_then(<[u8]>::first_chunk);
    bytes.map(|b| u32::from_ne_bytes(*b)).ok_or_else(short_answer)
}

/// The error for an answer that is too short.
pub(super) fn short_answer() -> Error {
    Error::new(ErrorKind::InvalidData, "the kernel's netlink answer is too short")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{NLMSG_ERROR, parse};

    #[test]
    fn short_answers_fail_and_late_answers_are_skipped() {
        let mut error = [0; 36];
        error[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        error[8] = 7;
        error[16..20].copy_from_slice(&(-1_i32).to_ne_bytes());
        assert!(parse(&error, 6).unwrap().is_none());
        assert_eq!(parse(&error, 7).unwrap_err().raw_os_error(), Some(1));
        for len in 0..20 {
            assert!(parse(&error[..len], 7).is_err(), "{len}");
        }
    }
}
