# `vitrail serve` as a container: docs/serve.md says how to run it. The model is mounted or copied to /model.
FROM python:3.12-slim AS build
# torch comes from the index that pip is configured with; its CPU wheels are a tenth of those with CUDA
ARG TORCH=torch
RUN python -m venv /opt/vitrail
ENV PATH=/opt/vitrail/bin:$PATH
RUN --mount=type=cache,target=/root/.cache/pip pip install "$TORCH"
COPY pyproject.toml README.md LICENSE /src/
COPY vitrail /src/vitrail
RUN --mount=type=cache,target=/root/.cache/pip pip install "/src[serve,onnx]"

FROM python:3.12-slim
RUN useradd --system --uid 10001 --no-create-home vitrail
COPY --from=build /opt/vitrail /opt/vitrail
ENV PATH=/opt/vitrail/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/livez', timeout=2)"]
# beyond its own machine the server wants a token: mount a file, or set VITRAIL_TOKEN
ENTRYPOINT ["vitrail", "serve", "/model", "--host", "0.0.0.0", "--port", "8000"]
