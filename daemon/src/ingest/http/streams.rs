//! Places of requests, over all connections that speak HTTP.
//!
//! Invariants:
//! - A request of any kind has a place before its body is read, and holds it until its answer has ended. So the memory
//!   of all streams is bounded by [`STREAMS_MAX`], and not by connections times streams of each.
//! - A request without a place is refused in the words of its protocol and may be made again later. Its body is not
//!   read.
//! - An owner never has all of the places: the quota leaves some for another owner.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use clad_proto::{AckLevel, ErrorCode, ErrorInfo};
use http_body_util::BodyExt;

use super::listen::Caller;
use crate::ingest::count_refusal;
use crate::ingest::quota::{Owner, Quota, QuotaGuard};

/// Streams over all connections.
pub(crate) const STREAMS_MAX: usize = 2048;
/// Time that a refused caller is asked to wait.
const RETRY_AFTER_MS: u32 = 1000;

/// The place of a stream, given back with the last clone.
#[derive(Clone)]
pub(crate) struct StreamSlot(#[expect(dead_code, reason = "it is there to be dropped")] Arc<QuotaGuard>);

impl StreamSlot {
    /// Passes a frame of the answer on. The closure that calls it owns the place while the answer's body lives.
    fn beside<T>(&self, frame: T) -> T {
        frame
    }
}

/// Answer of a protocol to a request that has no place.
pub(crate) type Refuse = fn(&Request, &ErrorInfo) -> Response;

/// Routes whose requests each take a place.
pub(crate) fn with_stream_slots(routes: Router, slots: &Arc<Quota>, refuse: Refuse) -> Router {
    routes.layer(from_fn_with_state((slots.clone(), refuse), with_stream_slot))
}

/// Gives a request its place, or refuses it. The request's extensions have a clone, for what outlives the answer's body.
async fn with_stream_slot(
    State((slots, refuse)): State<(Arc<Quota>, Refuse)>,
    mut request: Request,
    next: Next,
) -> Response {
    let owner = request.extensions().get::<Caller>().map_or(Owner::Network, |caller| caller.owner);
    let Some(slot) = slots.handle(owner).try_take(1) else { return refuse(&request, &refusal(owner)) };
    let slot = StreamSlot(Arc::new(slot));
    request.extensions_mut().insert(slot.clone());
    next.run(request).await.map(|body| Body::new(body.map_frame(move |frame| slot.beside(frame))))
}

fn refusal(owner: Owner) -> ErrorInfo {
    let text = format!("{owner} has its share of the {STREAMS_MAX} open requests: end some, or try again later");
    let error = ErrorInfo::new(ErrorCode::Busy, text).retry_after_ms(RETRY_AFTER_MS);
    count_refusal(AckLevel::Received, error.code, 1);
    error
}

#[cfg(test)]
mod tests {
    use clad_proto::grpc::{from_status, to_status};
    use tonic::codegen::Service;
    use tonic::{Code, Status};

    use super::*;

    async fn call(router: &mut Router) -> Result<Response, Status> {
        let response = router.call(Request::<Body>::default()).await.expect("it always answers");
        match Status::from_header_map(response.headers()) {
            Some(status) => Err(status),
            None => Ok(response),
        }
    }

    #[tokio::test]
    async fn a_call_beyond_all_places_is_refused_until_one_is_free() {
        let quota = Quota::new(4);
        let served = Router::new().fallback(async || "it is served");
        let mut router = with_stream_slots(served, &quota, |_, error| to_status(error).into_http());
        let mut open = Vec::new();
        let refused = loop {
            assert!(open.len() < 4, "nothing is refused");
            match call(&mut router).await {
                Ok(response) => open.push(response),
                Err(status) => break status,
            }
        };
        assert!((1..4).contains(&open.len()), "{} of 4: there is one for another owner", open.len());
        let error = from_status(&refused).expect("one of ours");
        assert_eq!((refused.code(), error.code), (Code::ResourceExhausted, ErrorCode::Busy));
        assert!(error.retryable && error.retry_after_ms == Some(RETRY_AFTER_MS));
        drop(open.pop());
        let body = call(&mut router).await.expect("a place is free").into_body();
        assert_eq!(body.collect().await.expect("an answer").to_bytes(), "it is served");
        let again = call(&mut router).await.expect("the answer has ended");
        assert!(call(&mut router).await.is_err());
        drop((again, open));
        assert_eq!(quota.in_use(), 0);
    }
}
