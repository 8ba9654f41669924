//! Batched intents (`MDS_BATCH`). The server refuses a lock that would have to wait. A wait would
//! delay the whole reply, and with it the cancels of the batch's granted locks that other clients
//! wait for.

use super::LockClient;
use super::enqueue::{Enqueue, EnqueueReply, PendingEnqueue, closed};
use bytes::Bytes;
use rpc::{ReplyMsg, Request, RpcError};
use wire::batch::{BatchBody, parse_replies};
use wire::format::bufs;
use wire::{BUT_GETATTR, Errno, MDS_BATCH, Message};

impl LockClient {
    /// Requests several inode-bits locks, each with a lookup intent, in one request. Each result is
    /// `EBUSY` if the lock would have had to wait, or `ECANCELED` if the server did not process it.
    ///
    /// # Errors
    ///
    /// If the whole batch failed or its reply is malformed.
    pub async fn enqueue_batch(
        &self,
        all: Vec<Enqueue>,
    ) -> Result<Vec<Result<EnqueueReply, RpcError>>, RpcError> {
        let client = self.me.upgrade().ok_or_else(closed)?;
        let import = client.import.get().ok_or_else(closed)?;
        let mut enqueues = Vec::with_capacity(all.len());
        let (mut requests, mut reply_len) = (Vec::with_capacity(all.len()), 0);
        for e in all {
            let enqueue = PendingEnqueue::begin(client.clone(), &e);
            let (bufs, request) = enqueue.pack(e);
            reply_len += request.reply_len;
            enqueues.push(enqueue);
            requests.push(Message {
                opc: BUT_GETATTR,
                repsize: request.reply_len,
                bufs,
                ..Message::default()
            });
        }
        let header = BatchBody::inline(&requests, reply_len);
        let reply = import
            .call(Request {
                reply_len,
                any_status: true,
                ..Request::new(MDS_BATCH, vec![header, Bytes::new()])
            })
            .await?;
        let answers = match parse_replies(&reply.bytes(bufs::BATCH_REPLY)) {
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
        let mut results = Vec::with_capacity(enqueues.len());
        for mut enqueue in enqueues {
            results.push(match answers.next() {
                Some(answer) => enqueue.finish(single_reply(&reply, answer)).await,
                None => Err(RpcError::Status(Errno::ECANCELED)),
            });
        }
        Ok(results)
    }
}

/// One reply of a batch, in the form of a reply to a single request.
fn single_reply(reply: &ReplyMsg, answer: Message) -> ReplyMsg {
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
