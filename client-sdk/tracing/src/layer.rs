//! The layer.

use clad_client::{ArrayWriter, Call, DropReason, EncodedPairs, KvWriter, Producer, blocking};
use tracing::{
    Event, Subscriber,
    field::Field,
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{
    layer::Context,
    registry::{LookupSpan, SpanRef},
};

use crate::callsite::is_own;
use crate::current::Current;
use crate::local::{Extent, Head, Local, with_local};
use crate::visit;

/// Spans around an event that its record names: the inner ones.
const SPANS_MAX: usize = 100;
/// The longest text of a span's field: it goes into each record in the span.
const SPAN_TEXT_BYTES_MAX: usize = 4096;

/// Hands events to a producer, with the spans around them. See [the crate](crate).
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use tracing_subscriber::layer::SubscriberExt;
///
/// let builder = clad_client::Producer::builder("unix:///run/clad/clad.sock".parse()?).component("billing");
/// let producer = clad_client::blocking::Producer::start(builder)?;
/// let subscriber = tracing_subscriber::registry().with(clad_tracing::Layer::new(&producer));
/// # let _ = subscriber;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Layer {
    current: Current,
    call: Call,
    #[cfg(feature = "opentelemetry")]
    dispatch: std::sync::OnceLock<tracing::dispatcher::WeakDispatch>,
}

/// Fields of a span, kept with it.
struct SpanFields {
    /// Its name, and the fields that it was made with.
    first: EncodedPairs,
    /// Fields recorded later; each once, with its last value.
    later: Vec<(Field, EncodedPairs)>,
}

impl Layer {
    /// A layer over a producer. Records have the producer's default level, and its rule for a lack of room.
    #[must_use]
    pub fn new(producer: &Producer) -> Self {
        Self::of(Current::new(producer))
    }

    pub(crate) fn of(current: Current) -> Self {
        Self {
            current,
            call: Call::new(),
            #[cfg(feature = "opentelemetry")]
            dispatch: std::sync::OnceLock::new(),
        }
    }

    /// Other settings than the producer's.
    #[must_use]
    pub fn with_call(mut self, call: Call) -> Self {
        self.call = call;
        self
    }

    fn send<S>(&self, local: &mut Local, event: &Event<'_>, context: &Context<'_, S>)
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let site = local.site(event.metadata());
        if site.is_own {
            return;
        }
        local.body.clear();
        let mut message = visit::Message { text: &mut local.body, is_there: false };
        event.record(&mut message);
        let has_body = message.is_there;
        let span = context.event_span(event);
        #[cfg(feature = "opentelemetry")]
        let ids = span.as_ref().and_then(|span| crate::otel::ids(&self.dispatch, &span.id()));
        #[cfg(not(feature = "opentelemetry"))]
        let ids = None;
        let head = Head {
            severity: site.severity,
            severity_text: site.severity_text,
            event_name: site.event_name,
            has_body,
            ids,
        };
        local.send(self.current.producer(), &self.call, head, |writer, value, extent| {
            if !matches!(extent, Extent::Bare(_)) {
                event.record(&mut visit::Attributes { pairs: writer, value, extent, with_message: false });
            }
            writer.encoded(&site.pairs);
            if let Some(span) = &span
                && !matches!(extent, Extent::Bare(_))
            {
                writer.entry("spans").array(|spans| write_spans(span, spans, SPANS_MAX));
            }
        });
    }
}

/// Writes a span behind those around it.
fn write_spans<'a, S: LookupSpan<'a>>(span: &SpanRef<'a, S>, spans: &mut ArrayWriter<'_>, left: usize) {
    if let Some(parent) = span.parent().filter(|_| left > 1) {
        write_spans(&parent, spans, left - 1);
    }
    if let Some(fields) = span.extensions().get::<SpanFields>() {
        spans.item().kv_list(|pairs| {
            pairs.encoded(&fields.first);
            fields.later.iter().for_each(|(_, later)| pairs.encoded(later));
        });
    }
}

/// Calls `f` with memory for a value: the thread's, unless something is being logged just now.
fn with_value<T>(f: impl FnOnce(&mut String) -> T) -> T {
    let mut f = Some(f);
    let done = with_local(|local| f.take().map(|f| f(&mut local.value)));
    match (done.flatten(), f) {
        (Some(done), _) => done,
        (None, Some(f)) => f(&mut String::new()),
        (None, None) => unreachable!("it was called and gave nothing"),
    }
}

impl<S> tracing_subscriber::Layer<S> for Layer
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    #[cfg(feature = "opentelemetry")]
    fn on_register_dispatch(&self, subscriber: &tracing::Dispatch) {
        let _ = self.dispatch.set(subscriber.downgrade());
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let extent = Extent::Texts(SPAN_TEXT_BYTES_MAX);
        let first = with_value(|value| {
            EncodedPairs::new(|pairs| {
                pairs.entry("name").text(attributes.metadata().name());
                attributes.record(&mut visit::Attributes { pairs, value, extent, with_message: true });
            })
        });
        let fields = SpanFields { first: first.unwrap_or_default(), later: Vec::new() };
        span.extensions_mut().replace(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut recorded = Vec::new();
        with_value(|value| values.record(&mut Later { recorded: &mut recorded, value }));
        let mut extensions = span.extensions_mut();
        let Some(fields) = extensions.get_mut::<SpanFields>() else { return };
        for (field, pairs) in recorded {
            match fields.later.iter_mut().find(|(known, _)| *known == field) {
                Some((_, known)) => *known = pairs,
                None => fields.later.push((field, pairs)),
            }
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        // The thread that runs a producer would log about what it logs.
        if blocking::is_worker_thread() {
            return;
        }
        if with_local(|local| self.send(local, event, &context)).is_none() && !is_own(event.metadata().target()) {
            self.current.producer().count_dropped(DropReason::Recursive);
        }
    }
}

/// Encodes each field by itself.
struct Later<'a> {
    recorded: &'a mut Vec<(Field, EncodedPairs)>,
    value: &'a mut String,
}

impl Later<'_> {
    fn add(&mut self, field: &Field, write: impl FnOnce(&mut visit::Attributes<'_, '_>)) {
        let extent = Extent::Texts(SPAN_TEXT_BYTES_MAX);
        let value = &mut *self.value;
        let encode = |pairs: &mut KvWriter<'_>| {
            write(&mut visit::Attributes { pairs, value, extent, with_message: true });
        };
        if let Ok(pairs) = EncodedPairs::new(encode) {
            self.recorded.push((field.clone(), pairs));
        }
    }
}

macro_rules! forward {
    ($($name:ident: $type:ty),*) => {
        $(fn $name(&mut self, field: &Field, value: $type) {
            self.add(field, |attributes| attributes.$name(field, value));
        })*
    };
}

impl tracing::field::Visit for Later<'_> {
    forward!(record_f64: f64, record_i64: i64, record_u64: u64, record_i128: i128, record_u128: u128, record_bool: bool,
        record_str: &str, record_bytes: &[u8], record_error: &(dyn std::error::Error + 'static),
        record_debug: &dyn std::fmt::Debug);
}
