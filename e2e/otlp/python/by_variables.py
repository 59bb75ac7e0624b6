"""A program whose SDK is set up by variables alone."""

import logging
from opentelemetry._logs import get_logger_provider
from opentelemetry.instrumentation.logging.handler import LoggingHandler
from opentelemetry.sdk._configuration import _OTelSDKConfigurator
_OTelSDKConfigurator().configure()
logging.getLogger().addHandler(LoggingHandler(logger_provider=get_logger_provider()))
logging.error('by variables')
get_logger_provider().shutdown()
