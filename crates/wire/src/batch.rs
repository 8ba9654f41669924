//! The content of `MDS_BATCH`: requests and replies, each a message without `ptlrpc_body`. `lm_opc`
//! of a request is its operation (`BUT_*`), `lm_opc` of a reply its status.
//!
//! A part is a `batch_update_request` with the number of messages, then the messages. One part
//! follows the `but_update_header` in the RPC's buffer, or the server fetches `buh_count` parts as
//! bulk data. The replies follow one `batch_update_reply`.

use crate::codec::{Result, WireError, Writer, round_up8};
use crate::consts::out::{BUT_HEADER_MAGIC, BUT_REPLY_MAGIC, BUT_REQUEST_MAGIC};
use crate::consts::ptlrpc::PTLRPC_MAX_BUFLEN;
use crate::layout::WireStruct;
use crate::msg::Message;
use crate::out::{BatchUpdateReply, BatchUpdateRequest, ButUpdateBuffer, ButUpdateHeader};
use bytes::Bytes;

/// Maximum number of messages in a part or in the replies, the limit of `statahead_batch_max` in
/// Lustre.
pub const BATCH_MAX: usize = 1024;
/// Maximum size of the bulk data in bytes: the largest payload of an LNet message.
pub const BATCH_BULK_MAX: usize = 1 << 20;

/// Where the requests of a batch are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchBody {
    /// One part in the RPC itself.
    Inline(Bytes),
    /// In bulk data, in parts of these sizes in bytes.
    Bulk(Vec<u32>),
}

impl BatchBody {
    /// Parses the header's buffer and the buffer of sizes, which only a batch in bulk data has.
    ///
    /// # Errors
    ///
    /// A wrong magic, a buffer shorter than stated, no part, or too much bulk data.
    pub fn parse(header: &Bytes, sizes: &[u8]) -> Result<BatchBody> {
        let head = ButUpdateHeader::from_bytes(header)?;
        check_magic(ButUpdateHeader::NAME, head.buh_magic, BUT_HEADER_MAGIC)?;
        let len = head.buh_inline_length as usize;
        if len > 0 {
            let inline = header.slice(ButUpdateHeader::SIZE..);
            if len > inline.len() {
                return Err(WireError::Short {
                    what: "buh_inline_data",
                    expected: len,
                    found: inline.len(),
                });
            }
            return Ok(BatchBody::Inline(inline.slice(..len)));
        }
        let count = head.buh_count as usize;
        let short = WireError::Short {
            what: "but_update_buffer",
            expected: count.saturating_mul(ButUpdateBuffer::SIZE),
            found: sizes.len(),
        };
        if count == 0 || count > sizes.len() / ButUpdateBuffer::SIZE {
            return Err(short);
        }
        let buffers = sizes.chunks_exact(ButUpdateBuffer::SIZE).take(count);
        let parts: Vec<u32> = buffers
            .map(|buffer| ButUpdateBuffer::from_bytes(buffer).map(|b| b.bub_size))
            .collect::<Result<_>>()?;
        let (limit, found) = (BATCH_BULK_MAX, parts.iter().map(|&len| len as usize).sum());
        if found > limit {
            return Err(WireError::TooLong {
                what: "bub_size",
                limit,
                found,
            });
        }
        Ok(BatchBody::Bulk(parts))
    }

    /// Builds the header's buffer of a batch that carries `requests` inline. `reply_len` is the
    /// size of the client's reply buffer in bytes.
    pub fn inline(requests: &[Message], reply_len: u32) -> Bytes {
        let body = build_requests(requests);
        let header = ButUpdateHeader {
            buh_magic: BUT_HEADER_MAGIC,
            buh_count: 1,
            buh_inline_length: body.len() as u32,
            buh_reply_size: reply_len,
            buh_update_count: requests.len() as u32,
            buh_padding: 0,
        };
        let mut w = Writer::with_capacity(ButUpdateHeader::SIZE + body.len());
        header.write(&mut w);
        w.put(&body);
        w.finish()
    }
}

/// Parses the requests of one part.
///
/// # Errors
///
/// A wrong magic, more than [`BATCH_MAX`] messages, or a truncated or malformed message.
pub fn parse_requests(part: &Bytes) -> Result<Vec<Message>> {
    let head = BatchUpdateRequest::from_bytes(part)?;
    check_magic(BatchUpdateRequest::NAME, head.burq_magic, BUT_REQUEST_MAGIC)?;
    parse_messages(part, BatchUpdateRequest::SIZE, head.burq_count)
}

/// Builds a part with these requests.
pub fn build_requests(requests: &[Message]) -> Bytes {
    let head = BatchUpdateRequest {
        burq_magic: BUT_REQUEST_MAGIC,
        burq_count: requests.len() as u16,
        burq_padding: 0,
    };
    build(&head, requests)
}

/// Parses the replies: one for each request, in order, up to the last request that the server
/// executed.
///
/// # Errors
///
/// A wrong magic, more than [`BATCH_MAX`] messages, or a truncated or malformed message.
pub fn parse_replies(bytes: &Bytes) -> Result<Vec<Message>> {
    let head = BatchUpdateReply::from_bytes(bytes)?;
    check_magic(BatchUpdateReply::NAME, head.burp_magic, BUT_REPLY_MAGIC)?;
    parse_messages(bytes, BatchUpdateReply::SIZE, head.burp_count)
}

/// Collects the replies of a batch.
#[derive(Debug, Default)]
pub struct BatchReplies {
    all: Vec<Message>,
    /// Size of the built replies without their header, in bytes.
    len: usize,
}

impl BatchReplies {
    /// Adds a reply. Returns `false` and adds nothing if the buffer of all replies would exceed
    /// `PTLRPC_MAX_BUFLEN`, or if there are [`BATCH_MAX`] replies.
    pub fn add(&mut self, reply: Message) -> bool {
        let len = self.len + reply.len();
        if self.all.len() == BATCH_MAX || BatchUpdateReply::SIZE + len > PTLRPC_MAX_BUFLEN as usize {
            return false;
        }
        self.len = len;
        self.all.push(reply);
        true
    }

    /// The reply's buffer.
    pub fn build(&self) -> Bytes {
        let head = BatchUpdateReply {
            burp_magic: BUT_REPLY_MAGIC,
            burp_count: self.all.len() as u16,
            burp_padding: 0,
        };
        build(&head, &self.all)
    }
}

fn check_magic(what: &'static str, found: u32, expected: u32) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(WireError::Magic {
        what,
        expected: expected.into(),
        found: found.into(),
    })
}

fn parse_messages(bytes: &Bytes, mut offset: usize, count: u16) -> Result<Vec<Message>> {
    let (limit, found) = (BATCH_MAX, usize::from(count));
    if found > limit {
        return Err(WireError::TooLong {
            what: "messages of a batch",
            limit,
            found,
        });
    }
    let mut parsed = Vec::new();
    for _ in 0..found {
        // The last message may lack its padding, so `offset` may be beyond the end.
        let message = Message::parse(&bytes.slice(offset.min(bytes.len())..))?;
        offset += message.len();
        parsed.push(message);
    }
    Ok(parsed)
}

fn build(head: &impl WireStruct, messages: &[Message]) -> Bytes {
    let len = messages.iter().map(Message::len).sum::<usize>();
    let mut w = Writer::with_capacity(round_up8(8 + len));
    head.write(&mut w);
    for message in messages {
        w.put(&message.build());
    }
    w.finish()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{
        BATCH_BULK_MAX, BATCH_MAX, BatchBody, BatchReplies, build_requests, parse_replies, parse_requests,
    };
    use crate::{BUT_GETATTR, ButUpdateBuffer, Message, WireError, WireStruct};
    use bytes::Bytes;
    use proptest::prelude::{any, prop, proptest};

    fn message(opc: u32, bufs: Vec<Vec<u8>>) -> Message {
        Message {
            opc,
            bufs: bufs.into_iter().map(Bytes::from).collect(),
            ..Message::default()
        }
    }

    fn header(count: u32, inline: u32) -> Bytes {
        let mut header = BatchBody::inline(&[message(BUT_GETATTR, vec![vec![1; 9]])], 4096).to_vec();
        header[4..8].copy_from_slice(&count.to_le_bytes());
        header[8..12].copy_from_slice(&inline.to_le_bytes());
        header.into()
    }

    fn sizes(sizes: &[u32]) -> Vec<u8> {
        let buffer = |&bub_size| ButUpdateBuffer {
            bub_size,
            bub_padding: 0,
        };
        sizes.iter().flat_map(|s| buffer(s).to_bytes()).collect()
    }

    proptest! {
        #[test]
        fn requests_and_replies_survive_a_round_trip(
            messages in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..9), 0..20)
        ) {
            let messages: Vec<Message> = (0..).zip(messages).map(|(i, bufs)| message(i, bufs)).collect();
            let header = BatchBody::inline(&messages, 9);
            let BatchBody::Inline(part) = BatchBody::parse(&header, &[]).unwrap() else { panic!() };
            assert_eq!(parse_requests(&part).unwrap(), messages);
            let mut built = BatchReplies::default();
            assert!(messages.iter().all(|m| built.add(m.clone())));
            assert_eq!(parse_replies(&built.build()).unwrap(), messages);
        }

        #[test]
        fn arbitrary_bytes_never_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..400), begin in 0usize..400, count in any::<u16>()
        ) {
            let valid = build_requests(&[message(1, vec![vec![7; 30]; 3]), message(1, vec![vec![8; 30]; 3])]);
            let mut changed = valid.to_vec();
            changed[4..6].copy_from_slice(&count.to_le_bytes());
            let begin = begin.min(changed.len());
            let end = (begin + bytes.len()).min(changed.len());
            changed[begin..end].copy_from_slice(&bytes[..end - begin]);
            for bytes in [Bytes::from(changed), Bytes::from(bytes)] {
                let _ = BatchBody::parse(&bytes, &bytes);
                for read in [parse_requests(&bytes), parse_replies(&bytes)].into_iter().flatten() {
                    assert!(read.len() <= BATCH_MAX);
                    assert_eq!(parse_requests(&build_requests(&read)).unwrap(), read);
                }
            }
        }
    }

    #[test]
    fn a_truncated_part_is_refused() {
        let built = build_requests(&[message(1, vec![vec![7; 32]]), message(1, vec![vec![8; 32]])]);
        for end in 0..built.len() {
            assert!(parse_requests(&built.slice(..end)).is_err(), "{end}");
        }
    }

    #[test]
    fn missing_parts_and_exceeded_limits_are_refused() {
        let inline = header(1, 0).len() as u32 - 24;
        assert!(
            matches!(BatchBody::parse(&header(1, inline), &[]), Ok(BatchBody::Inline(part)) if part.len() == inline as usize)
        );
        assert!(matches!(
            BatchBody::parse(&header(1, inline + 1), &[]),
            Err(WireError::Short { .. })
        ));
        let two = sizes(&[4096, 8192]);
        assert_eq!(
            BatchBody::parse(&header(2, 0), &two),
            Ok(BatchBody::Bulk(vec![4096, 8192]))
        );
        for count in [0, 3, u32::MAX] {
            assert!(matches!(
                BatchBody::parse(&header(count, 0), &two),
                Err(WireError::Short { .. })
            ));
        }
        let much = sizes(&[BATCH_BULK_MAX as u32, 1]);
        assert!(matches!(
            BatchBody::parse(&header(2, 0), &much),
            Err(WireError::TooLong { .. })
        ));
        let many = vec![message(1, vec![vec![]]); BATCH_MAX + 1];
        assert!(matches!(
            parse_requests(&build_requests(&many)),
            Err(WireError::TooLong { .. })
        ));
    }

    #[test]
    fn replies_beyond_the_buffer_limit_are_refused() {
        let mut all = BatchReplies::default();
        let large = message(0, vec![vec![0; 1 << 19]]);
        assert!(all.add(large.clone()) && !all.add(large));
        assert!(all.add(message(0, vec![vec![0; 8]])));
        assert_eq!(parse_replies(&all.build()).unwrap().len(), 2);
    }
}
