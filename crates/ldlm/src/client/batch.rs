//! Batched intents (`MDS_BATCH`). The server refuses a lock that would have to wait, because a wait
//! would delay the whole reply. Until the reply the client cannot cancel the batch's other locks,
//! and other clients may wait for them.

use super::LockClient;
use super::enqueue::{Enqueue, EnqueueReply, PendingEnqueue, closed_error};
use bytes::Bytes;
use rpc::{ReplyMsg, Request, RpcError};
use wire::batch::{BatchBody, parse_replies};
use wire::format::bufs;
use wire::{BUT_GETATTR, Errno, MDS_BATCH, Message};

impl LockClient {
    /// Requests several inode-bits locks, each with a lookup intent, in one request. Returns one
    /// result for each: `EBUSY` if the lock would have had to wait, `ECANCELED` if the server did
    /// not process the intent.
    ///
    /// # Errors
    ///
    /// [`RpcError::Status`] if the server refused the whole batch, [`RpcError::Protocol`] if the
    /// reply is malformed, or an error of the RPC.
    pub async fn enqueue_batch(
        &self,
        enqueues: Vec<Enqueue>,
    ) -> Result<Vec<Result<EnqueueReply, RpcError>>, RpcError> {
        let client = self.me.upgrade().ok_or_else(closed_error)?;
        let import = client.import.get().ok_or_else(closed_error)?;
        let mut pending_enqueues = Vec::with_capacity(enqueues.len());
        let (mut requests, mut reply_len) = (Vec::with_capacity(enqueues.len()), 0);
        for enqueue in enqueues {
            let pending = PendingEnqueue::begin(client.clone(), &enqueue);
            let (bufs, request) = pending.pack(enqueue);
            reply_len += request.reply_len;
            pending_enqueues.push(pending);
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
                return_error_replies: true,
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
        let mut results = Vec::with_capacity(pending_enqueues.len());
        for mut pending in pending_enqueues {
            results.push(match answers.next() {
                Some(answer) => pending.finish(single_reply(&reply, answer)).await,
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
        uncommitted_guard: None,
    }
}
