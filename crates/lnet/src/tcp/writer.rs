//! Sends what a connection's queue holds: everything that waits leaves in one vectored write.

use super::conn::{Conn, Tx, Work};
use crate::{LnetConfig, LnetError};
use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice};
use std::net::Shutdown;
use tokio::time::timeout;
use wire::frame::FrameHead;
use wire::{Nid, SOCKNAL_KEEPALIVE_PING};

/// Writes until the connection ends. An error is for the whole peer; without one the end was asked for.
pub(super) async fn run(conn: &Conn, peer: Nid, cfg: &LnetConfig) -> Result<(), LnetError> {
    loop {
        let (batch, noops) = match conn.work(cfg.keepalive).await {
            Work::Send(batch, noops) => (batch, noops),
            Work::Idle => (Vec::new(), vec![[0, SOCKNAL_KEEPALIVE_PING.into()]]),
            Work::End => break,
        };
        let heads: Vec<_> = batch
            .iter()
            .map(|(tx, cookie)| tx.msg.head(conn.ni.nid, *cookie))
            .chain(noops.into_iter().map(|cookies| FrameHead::Noop { cookies }))
            .map(|head| head.build())
            .collect();
        // Payloads are kept beside their messages, so that each message can be let go as soon as it has left.
        let payloads: Vec<_> = batch.iter().map(|(tx, _)| tx.msg.payload.clone()).collect();
        let mut slices = Vec::with_capacity(2 * heads.len());
        let mut outgoing = Outgoing::default();
        let mut txs = batch.into_iter().map(|(tx, _)| tx);
        for (i, head) in heads.iter().enumerate() {
            slices.push(IoSlice::new(head));
            outgoing.end += head.len();
            for piece in payloads
                .get(i)
                .into_iter()
                .flat_map(|p| p.iter())
                .filter(|p| !p.is_empty())
            {
                slices.push(IoSlice::new(piece));
                outgoing.end += piece.len();
            }
            outgoing.txs.extend(txs.next().map(|tx| (outgoing.end, tx)));
        }
        if let Err(why) = write_all(conn, &mut slices, &mut outgoing, cfg).await {
            let why = LnetError::PeerLost { peer, why };
            outgoing.txs.drain(..).for_each(|(_, tx)| tx.unsent(&why));
            return Err(why);
        }
    }
    // The peer reads what was sent and then the end; an error means that it is gone already.
    let _ = socket2::SockRef::from(&conn.stream).shutdown(Shutdown::Write);
    Ok(())
}

/// Messages of one write, each with the number of bytes after which it has left.
#[derive(Default)]
struct Outgoing {
    txs: VecDeque<(usize, Tx)>,
    end: usize,
    written: usize,
}

impl Outgoing {
    fn advance(&mut self, n: usize) {
        self.written += n;
        while self.txs.front().is_some_and(|(end, _)| *end <= self.written) {
            if let Some((_, tx)) = self.txs.pop_front() {
                tx.sent();
            }
        }
    }
}

async fn write_all(
    conn: &Conn,
    slices: &mut [IoSlice<'_>],
    outgoing: &mut Outgoing,
    cfg: &LnetConfig,
) -> Result<(), String> {
    let mut rest = slices;
    while outgoing.written < outgoing.end {
        match conn.stream.try_write_vectored(rest) {
            Ok(0) => return Err("the socket takes nothing more".into()),
            Ok(n) => {
                IoSlice::advance_slices(&mut rest, n);
                outgoing.advance(n);
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                match timeout(cfg.sock_timeout, conn.stream.writable()).await {
                    Ok(ready) => ready.map_err(|e| e.to_string())?,
                    Err(_) => return Err(format!("it took nothing for {:?}", cfg.sock_timeout)),
                }
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e.to_string()),
        }
    }
    Ok(())
}
