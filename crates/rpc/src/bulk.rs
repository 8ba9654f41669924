//! Bulk transfers: data that the server moves by LNet GET and PUT. Each MD has its own match bits
//! (docs/protocol.md, "Bulk transfers").

use crate::Bulk;
use lnet::{Lnet, MatchEntry, Md, MdEvent, MdHandle, Payload};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use wire::Nid;

/// A client's MDs, attached before the request is sent.
pub(crate) struct BulkBuffers {
    sinks: Vec<MdHandle>,
    /// Stays attached until the reply has arrived.
    _sources: Vec<MdHandle>,
}

impl BulkBuffers {
    /// Attaches the MDs of `bulk` for `peer`, from match bits `base` on.
    pub(crate) fn attach(
        lnet: &Arc<Lnet>,
        peer: Nid,
        portal: u32,
        base: u64,
        bulk: Option<&Bulk>,
    ) -> BulkBuffers {
        let attach = |(i, md): (usize, Md)| {
            lnet.attach(
                MatchEntry {
                    portal,
                    match_bits: base + i as u64,
                    from: Some(peer),
                },
                md,
            )
        };
        let (mut sinks, mut sources) = (Vec::new(), Vec::new());
        match bulk {
            Some(Bulk::Sink(lens)) => {
                let mds = lens.iter().map(|&max_len| Md::Sink { max_len });
                sinks = mds.enumerate().map(attach).collect();
            }
            Some(Bulk::Source(payloads)) => {
                let mds = payloads.iter().map(|payload| Md::Source(payload.clone()));
                sources = mds.enumerate().map(attach).collect();
            }
            None => {}
        }
        BulkBuffers {
            sinks,
            _sources: sources,
        }
    }

    /// Whether the server PUTs no data, so that there is nothing to collect.
    pub(crate) fn has_no_sinks(&self) -> bool {
        self.sinks.is_empty()
    }

    /// Waits for one PUT per sink; returns the payloads in the order of the sinks.
    pub(crate) async fn collect(&mut self) -> Vec<Payload> {
        let mut all = Vec::with_capacity(self.sinks.len());
        for sink in &mut self.sinks {
            while let Some(event) = sink.next().await {
                if let MdEvent::Put { payload, .. } = event {
                    all.push(payload);
                    break;
                }
            }
        }
        all
    }
}

/// The match bits of the first of `mds` MDs. `mbits` is `pb_mbits`, the match bits of the last one.
pub(crate) fn first_match_bits(mbits: u64, mds: usize) -> u64 {
    mbits.saturating_sub((mds as u64).saturating_sub(1))
}

/// Runs all futures concurrently; returns their values in order, or the first failure.
pub(crate) async fn try_join_all<T, E>(
    futures: impl IntoIterator<Item = impl Future<Output = Result<T, E>> + Send>,
) -> Result<Vec<T>, E> {
    let mut running: Vec<_> = futures.into_iter().map(|f| Some(Box::pin(f))).collect();
    let mut done: Vec<Option<T>> = running.iter().map(|_| None).collect();
    poll_fn(|cx| {
        let mut waiting = false;
        for (slot, out) in running.iter_mut().zip(&mut done) {
            let Some(future) = slot else { continue };
            match Pin::new(future).poll(cx) {
                Poll::Pending => waiting = true,
                Poll::Ready(Ok(value)) => (*slot, *out) = (None, Some(value)),
                Poll::Ready(Err(e)) => return Poll::Ready(Err(e)),
            }
        }
        if waiting {
            Poll::Pending
        } else {
            Poll::Ready(Ok(()))
        }
    })
    .await?;
    Ok(done.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::{first_match_bits, try_join_all};

    #[test]
    fn the_first_match_bits_follow_from_the_last_and_the_count() {
        assert_eq!(first_match_bits(0x1000_0000, 1), 0x1000_0000);
        assert_eq!(first_match_bits(0x1000_0003, 4), 0x1000_0000);
        assert_eq!(first_match_bits(0, 4), 0);
        assert_eq!(first_match_bits(u64::MAX, 1), u64::MAX);
        assert_eq!(first_match_bits(7, 0), 7);
    }

    #[tokio::test]
    async fn values_come_in_order_and_the_first_failure_is_returned() {
        let ok = try_join_all((0..3).map(|i| async move { Ok::<_, ()>(i) })).await;
        assert_eq!(ok, Ok(vec![0, 1, 2]));
        let failed = try_join_all((0..3).map(|i| async move { if i == 1 { Err(i) } else { Ok(i) } })).await;
        assert_eq!(failed, Err(1));
    }
}
