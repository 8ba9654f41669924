//! What a connection reads: many small frames in one read, a large payload straight into memory of its own.

use super::conn::Conn;
use super::pool::Pool;
use super::reader::End;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use wire::frame::{FRAME_HEAD, FrameHead};

/// How much is read at once, if the peer has sent so much.
const READ_BUFFER: usize = 64 << 10;
/// Payloads from here on are read into memory of their own.
const BULK_MIN: usize = 64 << 10;
/// Payloads below are copied: what keeps one does not keep the whole buffer that it came in.
const COPY_MAX: usize = 2 << 10;

/// The reading end of a connection.
pub(super) struct Input<'a> {
    conn: &'a Conn,
    buf: BytesMut,
    pool: Arc<Pool>,
    sock_timeout: Duration,
    /// The last payload was large: read only the next head, so that the next large payload is not copied in part.
    after_bulk: bool,
}

impl Input<'_> {
    pub(super) fn new(conn: &Conn, pool: Arc<Pool>, sock_timeout: Duration) -> Input<'_> {
        Input {
            conn,
            buf: BytesMut::new(),
            pool,
            sock_timeout,
            after_bulk: false,
        }
    }

    /// The head of the next frame. Waits as long as it takes, but not inside of a head.
    pub(super) async fn head(&mut self) -> Result<FrameHead, End> {
        loop {
            let parsed = FrameHead::parse(&self.buf).map_err(|e| End::Wrong(e.to_string()))?;
            if let Some((head, len)) = parsed {
                self.buf.advance(len);
                return Ok(head);
            }
            let limit = if self.after_bulk {
                FRAME_HEAD - self.buf.len()
            } else {
                usize::MAX
            };
            self.read_more(limit).await.map_err(End::Lost)?;
        }
    }

    /// The `len` bytes that follow the head. `len` has been checked against the protocol's limit.
    pub(super) async fn payload(&mut self, len: usize) -> Result<Bytes, String> {
        self.after_bulk = len >= BULK_MIN;
        if self.after_bulk {
            return self.bulk(len).await;
        }
        while self.buf.len() < len {
            self.buf.reserve(len - self.buf.len());
            self.read_more(usize::MAX).await?;
        }
        if len < COPY_MAX {
            let copy = Bytes::copy_from_slice(&self.buf[..len]);
            self.buf.advance(len);
            return Ok(copy);
        }
        Ok(self.buf.split_to(len).freeze())
    }

    async fn bulk(&mut self, len: usize) -> Result<Bytes, String> {
        let mut data = self.pool.take(len);
        let there = self.buf.len().min(len);
        data.as_buf_mut().put_slice(&self.buf[..there]);
        self.buf.advance(there);
        while data.len() < len {
            let missing = len - data.len();
            read(
                self.conn,
                &mut data.as_buf_mut().limit(missing),
                Some(self.sock_timeout),
            )
            .await?;
        }
        Ok(data.freeze())
    }

    async fn read_more(&mut self, limit: usize) -> Result<(), String> {
        if self.buf.is_empty() {
            // While nothing comes, a connection holds no buffer.
            self.buf = BytesMut::new();
            self.conn.stream.readable().await.map_err(|e| e.to_string())?;
        }
        if self.buf.capacity() - self.buf.len() < FRAME_HEAD {
            self.buf.reserve(READ_BUFFER);
        }
        let patience = (!self.buf.is_empty()).then_some(self.sock_timeout);
        read(self.conn, &mut (&mut self.buf).limit(limit), patience).await
    }
}

/// Reads something, as much as there is room for; waits for it at most `patience`, or as long as it takes.
async fn read(conn: &Conn, into: &mut impl BufMut, patience: Option<Duration>) -> Result<(), String> {
    loop {
        match conn.stream.try_read_buf(into) {
            Ok(0) => return Err("it closed the connection".into()),
            Ok(_) => return Ok(()),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(e.to_string()),
        }
        let ready = match patience {
            None => conn.stream.readable().await,
            Some(limit) => match timeout(limit, conn.stream.readable()).await {
                Ok(ready) => ready,
                Err(_) => return Err(format!("it stopped inside of a message for {limit:?}")),
            },
        };
        ready.map_err(|e| e.to_string())?;
    }
}
