//! Sends a connection's queue, many waiting messages in one vectored write, and lets senders write
//! their own message directly.

use super::conn::{Conn, Tx, Work};
use crate::{LnetConfig, LnetError};
use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice};
use std::net::Shutdown;
use tokio::time::timeout;
use wire::frame::FrameHead;
use wire::{Nid, SOCKNAL_KEEPALIVE_PING};

/// Writes until the connection ends. An error concerns all connections of the peer; `Ok` means that
/// this node finished or closed the connection.
pub(super) async fn run(conn: &Conn, peer: Nid, cfg: &LnetConfig) -> Result<(), LnetError> {
    loop {
        let (batch, noops) = match conn.next_work(cfg.keepalive).await {
            Work::Send(batch, noops) => (batch, noops),
            Work::Keepalive => (Vec::new(), vec![[0, SOCKNAL_KEEPALIVE_PING.into()]]),
            Work::End => break,
        };
        let already_written = batch.first().map_or(0, |first| first.written);
        let heads: Vec<_> = batch
            .iter()
            .map(|partial| partial.tx.msg.head(conn.ni.nid, partial.cookie))
            .chain(noops.into_iter().map(|cookies| FrameHead::Noop { cookies }))
            .map(|head| head.build())
            .collect();
        // Payloads are cloned, so that each message can be dropped as soon as it has been sent.
        let payloads: Vec<_> = batch
            .iter()
            .map(|partial| partial.tx.msg.payload.clone())
            .collect();
        let mut slices = Vec::with_capacity(2 * heads.len());
        let mut progress = WriteProgress::default();
        let mut txs = batch.into_iter().map(|partial| partial.tx);
        for (i, head) in heads.iter().enumerate() {
            slices.push(IoSlice::new(head));
            progress.end += head.len();
            for piece in payloads
                .get(i)
                .into_iter()
                .flat_map(|p| p.iter())
                .filter(|p| !p.is_empty())
            {
                slices.push(IoSlice::new(piece));
                progress.end += piece.len();
            }
            progress.txs.extend(txs.next().map(|tx| (progress.end, tx)));
        }
        let mut rest = slices.as_mut_slice();
        IoSlice::advance_slices(&mut rest, already_written);
        progress.written = already_written;
        if let Err(why) = write_all(conn, rest, &mut progress, cfg).await {
            let why = LnetError::PeerLost { peer, why };
            progress.txs.drain(..).for_each(|(_, tx)| tx.report_unsent(&why));
            return Err(why);
        }
    }
    // The peer still reads the sent data and then the end of the stream. An error means that the
    // peer has disconnected already.
    let _ = socket2::SockRef::from(conn.stream.as_ref()).shutdown(Shutdown::Write);
    Ok(())
}

/// Writes a message directly if nothing precedes it, as far as the socket takes it. The writer task
/// sends the rest.
pub(super) fn send_directly(conn: &Conn, tx: Tx) {
    let Some(mut partial) = conn.begin_write(tx) else {
        return;
    };
    let msg = &partial.tx.msg;
    let head = msg.head(conn.ni.nid, partial.cookie).build();
    let pieces = msg.payload.iter().filter(|piece| !piece.is_empty());
    let slices: Vec<_> = std::iter::once(IoSlice::new(&head))
        .chain(pieces.map(|piece| IoSlice::new(piece)))
        .collect();
    let len = slices.iter().map(|slice| slice.len()).sum();
    conn.mark_written();
    // The writer task meets the same socket errors and handles them.
    partial.written = conn.stream.try_write_vectored(&slices).unwrap_or(0);
    if partial.written < len {
        return conn.end_write(Some(partial));
    }
    conn.end_write(None);
    partial.tx.report_sent();
}

/// The messages of one write and its progress, in bytes from the start of the first message.
#[derive(Default)]
struct WriteProgress {
    /// Unsent messages, each with the offset of its end.
    txs: VecDeque<(usize, Tx)>,
    /// The end of the last message or NOOP.
    end: usize,
    written: usize,
}

impl WriteProgress {
    /// Counts `n` more bytes as written, and reports the messages that have been sent completely.
    fn advance(&mut self, n: usize) {
        self.written += n;
        while self.txs.front().is_some_and(|(end, _)| *end <= self.written) {
            if let Some((_, tx)) = self.txs.pop_front() {
                tx.report_sent();
            }
        }
    }
}

async fn write_all(
    conn: &Conn,
    slices: &mut [IoSlice<'_>],
    progress: &mut WriteProgress,
    cfg: &LnetConfig,
) -> Result<(), String> {
    let mut rest = slices;
    conn.mark_written();
    while progress.written < progress.end {
        match conn.stream.try_write_vectored(rest) {
            Ok(0) => return Err("the socket accepts no more data".into()),
            Ok(n) => {
                IoSlice::advance_slices(&mut rest, n);
                progress.advance(n);
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                match timeout(cfg.sock_timeout, conn.stream.writable()).await {
                    Ok(ready) => ready.map_err(|e| e.to_string())?,
                    Err(_) => return Err(format!("it accepted no data for {:?}", cfg.sock_timeout)),
                }
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e.to_string()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{run, send_directly};
    use crate::LnetConfig;
    use crate::message::{self, Msg};
    use crate::ni::{Ni, NiSpec};
    use crate::tcp::conn::{Conn, Reservation, Tx};
    use crate::tcp::hello::ConnType;
    use bytes::Bytes;
    use cpt::{CptId, CptTable};
    use socket2::SockRef;
    use std::sync::Arc;
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::{Semaphore, oneshot};
    use wire::Nid;
    use wire::frame::{FRAME_HEAD, FrameHead, LnetOp};

    const HERE: Nid = Nid(0x0002_0000_7f00_0001);
    const LEN: usize = 10_000;

    /// A connection with a running writer task, and the peer's end of it.
    async fn connection() -> (Arc<Conn>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        let (ours, theirs) = tokio::join!(TcpStream::connect(to), listener.accept());
        let ours = ours.unwrap();
        SockRef::from(&ours).set_send_buffer_size(LEN).unwrap();
        let (cfg, table) = (LnetConfig::default(), CptTable::single_current());
        let ni = Arc::new(Ni::new(&NiSpec::new(HERE), &cfg, &table).unwrap());
        let (_, outgoing) = ours.into_split();
        let conn = Arc::new(Conn::new(outgoing, ni, CptId(0), ConnType::Any, None));
        let writing = conn.clone();
        cpt::spawn(async move { run(&writing, HERE, &cfg).await });
        (conn, theirs.unwrap().0)
    }

    /// The message number `n`, and the receiver of its result.
    async fn tx(n: u64) -> (Tx, oneshot::Receiver<Result<(), crate::tcp::conn::SendFailure>>) {
        let (done, sent) = oneshot::channel();
        let permit = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
        let payload = Bytes::from(vec![n as u8; LEN]).into();
        let tx = Tx {
            msg: Msg::to_peer(HERE, message::put(None, 1, n, 0, 0), payload),
            _reservation: Reservation::Answer(permit),
            done: Some(done),
        };
        (tx, sent)
    }

    #[tokio::test]
    async fn the_writer_first_finishes_a_message_that_a_sender_began() {
        let (conn, mut peer) = connection().await;
        let mut waiting = Vec::new();
        let (mut n, mut sent_directly) = (0, 0);
        // Until the sockets are full and five messages wait.
        while waiting.len() < 5 {
            let (tx, mut sent) = tx(n).await;
            match n % 7 {
                6 => conn.push(tx),
                _ => send_directly(&conn, tx),
            }
            match sent.try_recv() {
                Ok(result) => {
                    result.unwrap();
                    sent_directly += 1;
                }
                Err(_) => waiting.push(sent),
            }
            n += 1;
            tokio::task::yield_now().await;
        }
        assert!(sent_directly > 0, "some messages are sent directly");
        let mut frame = vec![0; FRAME_HEAD + LEN];
        for expected in 0..n {
            peer.read_exact(&mut frame).await.unwrap();
            let (head, len) = FrameHead::parse(&frame).unwrap().unwrap();
            let FrameHead::Lnet {
                msg: LnetOp::Put(put),
                ..
            } = head
            else {
                unreachable!("{head:?}")
            };
            assert_eq!((put.match_bits, len), (expected, FRAME_HEAD));
            assert!(frame[FRAME_HEAD..].iter().all(|&byte| byte == expected as u8));
        }
        for sent in waiting {
            sent.await.unwrap().unwrap();
        }
    }

    #[tokio::test]
    async fn a_partially_sent_message_is_returned_when_the_connection_closes() {
        let (conn, _peer) = connection().await;
        let mut partly_sent = None;
        while partly_sent.is_none() {
            let (tx, mut sent) = tx(1).await;
            send_directly(&conn, tx);
            partly_sent = sent.try_recv().is_err().then_some(sent);
        }
        conn.close(&crate::LnetError::ShutDown);
        let unsent = partly_sent.unwrap().await.unwrap().unwrap_err();
        assert_eq!(unsent.msg.payload.len(), LEN);
        let (tx, sent) = tx(2).await;
        send_directly(&conn, tx);
        assert!(
            sent.await.unwrap().is_err(),
            "a closed connection refuses messages"
        );
    }
}
