//! Many intents in one request (`MDS_BATCH`). The server lets none of them wait: a lock that is not to be had at once is
//! refused, so that no lock of the batch is held up by another, nor anybody by a lock that its client does not know of yet.

use super::LockClient;
use super::enqueue::{Attempt, Enqueue, Enqueued, closed};
use bytes::Bytes;
use rpc::{ReplyMsg, Request, RpcError};
use wire::batch::{Asked, replies};
use wire::format::bufs;
use wire::{BUT_GETATTR, Errno, MDS_BATCH, Message};

impl LockClient {
    /// Asks for several locks of inode bits at once, each with an intent that looks up a name. What came of each: refused
    /// with `EBUSY` where it would have had to wait, with `ECANCELED` where the server did not come to it.
    pub async fn enqueue_batch(
        &self,
        all: Vec<Enqueue>,
    ) -> Result<Vec<Result<Enqueued, RpcError>>, RpcError> {
        let client = self.me.upgrade().ok_or_else(closed)?;
        let import = client.import.get().ok_or_else(closed)?;
        let mut attempts = Vec::with_capacity(all.len());
        let (mut asked, mut reply_len) = (Vec::with_capacity(all.len()), 0);
        for e in all {
            let attempt = Attempt::begin(client.clone(), &e);
            let (bufs, request) = attempt.pack(e);
            reply_len += request.reply_len;
            attempts.push(attempt);
            asked.push(Message {
                opc: BUT_GETATTR,
                repsize: request.reply_len,
                bufs,
                ..Message::default()
            });
        }
        let header = Asked::inline(&asked, reply_len);
        let reply = import
            .call(Request {
                reply_len,
                any_status: true,
                ..Request::new(MDS_BATCH, vec![header, Bytes::new()])
            })
            .await?;
        let answers = match replies(&reply.bytes(bufs::BATCH_REPLY)) {
            Ok(answers) => answers,
            Err(_) if reply.status < 0 => {
                return Err(RpcError::Status(
                    Errno::from_status(reply.status).unwrap_or(Errno::EPROTO),
                ));
            }
            Err(e) => {
                return Err(RpcError::Protocol {
                    peer: import.name().to_owned(),
                    expected: "a batch of replies",
                    found: e.to_string(),
                });
            }
        };
        let mut answers = answers.into_iter();
        let mut done = Vec::with_capacity(attempts.len());
        for mut attempt in attempts {
            done.push(match answers.next() {
                Some(answer) => attempt.finish(alone(&reply, answer)).await,
                None => Err(RpcError::Status(Errno::ECANCELED)),
            });
        }
        Ok(done)
    }
}

/// A reply of a batch, as if to a request of its own.
fn alone(reply: &ReplyMsg, answer: Message) -> ReplyMsg {
    ReplyMsg {
        status: answer.opc as i32,
        msg: Message {
            bufs: std::iter::once(reply.bytes(bufs::PTLRPC_BODY))
                .chain(answer.bufs)
                .collect(),
            ..Message::default()
        },
        body: reply.body,
        bulk: Vec::new(),
        replay_guard: None,
    }
}
